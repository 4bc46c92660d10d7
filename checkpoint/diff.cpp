#include "checkpoint/diff.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>

#include "checkpoint/format/state_json.h"
#include "checkpoint/step_reader.h"

namespace gt {
namespace {

using Json = nlohmann::ordered_json;

// Maps floats to integers in numeric order: neighbours differ by one; -0 and 0 are equal.
int64_t ordinal(float v) {
  int32_t bits;
  std::memcpy(&bits, &v, sizeof bits);
  return bits < 0 ? -static_cast<int64_t>(bits & 0x7fffffff) : bits;
}

void compare(const std::vector<float>& a, const std::vector<float>& b, TensorDiff& d) {
  double largest = 0;
  d.elements = static_cast<int64_t>(a.size());
  for (size_t k = 0; k < a.size(); ++k) {
    if (std::isfinite(a[k])) largest = std::max<double>(largest, std::fabs(a[k]));
    if (std::memcmp(&a[k], &b[k], sizeof(float)) == 0) continue;
    if (d.different++ == 0) d.first = static_cast<int64_t>(k), d.a = a[k], d.b = b[k];
    if (!std::isfinite(a[k]) || !std::isfinite(b[k])) {
      d.max_abs = std::numeric_limits<double>::infinity();
      d.max_ulp = std::numeric_limits<uint64_t>::max();
      continue;
    }
    d.max_abs = std::max(d.max_abs, std::fabs(static_cast<double>(a[k]) - b[k]));
    d.max_ulp = std::max(d.max_ulp, static_cast<uint64_t>(std::llabs(ordinal(a[k]) - ordinal(b[k]))));
  }
  d.relative = d.max_abs == 0 ? 0 : largest > 0 ? d.max_abs / largest : std::numeric_limits<double>::infinity();
}

std::string describe(const TensorEntry& t) { return cat(name_of(t.dtype), " ", to_string(t.shape)); }

// Compares state, except what may differ between two runs of one training: run identity, elapsed time, micro batch, and
// keys carried for a newer program.
std::vector<std::string> state_differences(const TrainState& a, const TrainState& b) {
  const auto flat = [](const TrainState& s) {
    Json j = to_json(s);
    for (const char* own : {"run_uuid", "elapsed_seconds"}) j.erase(own);
    j["batch"].erase("micro");
    return j.flatten();
  };
  const Json fa = flat(a), fb = flat(b);
  std::set<std::string> keys;
  for (const auto& [key, value] : fa.items()) keys.insert(key);
  for (const auto& [key, value] : fb.items()) keys.insert(key);
  // The values of one list form one entry: how many differ, and the first that does. Lists are histories and come last:
  // the cause of a difference (a seed, a batch size) is a value of its own.
  struct Entry {
    int64_t values = 0;
    std::string first;
    bool list = false;
  };
  std::map<std::string, Entry> entries;
  for (const std::string& key : keys) {
    const auto text = [&](const Json& j) { return j.contains(key) ? j.at(key).dump() : std::string("absent"); };
    if (text(fa) == text(fb)) continue;
    std::string name = key.substr(1);
    std::replace(name.begin(), name.end(), '/', '.');
    const size_t dot = name.rfind('.');
    const bool of_list = dot != std::string::npos && name.find_first_not_of("0123456789", dot + 1) == std::string::npos;
    Entry& e = entries[of_list ? name.substr(0, dot) : name];
    e.list = of_list;
    if (e.values++ == 0) e.first = name + ": " + text(fa) + " | " + text(fb);
  }
  std::vector<std::string> out;
  for (const bool list : {false, true})
    for (const auto& [name, e] : entries)
      if (e.list == list)
        out.push_back(e.values == 1 ? e.first : cat(name, ": ", e.values, " values differ, the first: ", e.first));
  return out;
}

}  // namespace

DiffReport diff_steps(Vfs& vfs, const std::string& path_a, const std::string& path_b, double tolerance) {
  StepReader a(vfs, path_a), b(vfs, path_b);
  DiffReport out;
  const auto misfit = [&](const std::string& name, std::string text) {
    out.within = false;
    out.tensors.push_back({.name = name,
                           .misfit = std::move(text),
                           .max_abs = std::numeric_limits<double>::infinity(),
                           .relative = std::numeric_limits<double>::infinity()});
  };
  for (const TensorEntry& t : a.manifest().tensors) {
    const TensorEntry* other = b.find(t.name);
    if (other == nullptr) {
      misfit(t.name, "only in A: " + describe(t));
      continue;
    }
    if (other->shape != t.shape || other->dtype != t.dtype) {
      misfit(t.name, describe(t) + " | " + describe(*other));
      continue;
    }
    ++out.compared;
    TensorDiff d{.name = t.name};
    compare(a.read(t), b.read(*other), d);
    if (d.different == 0) continue;
    out.within = out.within && d.relative <= tolerance;
    out.tensors.push_back(std::move(d));
  }
  for (const TensorEntry& t : b.manifest().tensors)
    if (a.find(t.name) == nullptr) misfit(t.name, "only in B: " + describe(t));
  std::stable_sort(out.tensors.begin(), out.tensors.end(),
                   [](const TensorDiff& x, const TensorDiff& y) { return x.relative > y.relative; });
  out.state = state_differences(a.manifest().state, b.manifest().state);
  out.within = out.within && out.state.empty();
  return out;
}

}  // namespace gt
