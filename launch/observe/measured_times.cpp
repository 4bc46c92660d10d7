#include "launch/observe/measured_times.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/core/cache_files.h"
#include "kernels/core/check.h"
#include "kernels/core/json.h"
#include "kernels/core/json_field.h"
#include "launch/options/version.h"

namespace gt {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostBytes = 64 << 20;

// The three GEMMs of a linear layer have equal sizes and other operand layouts.
std::string kind_of(const OpCall& c) {
  for (const char* direction : {" forward", " input gradient", " weight gradient"})
    if (c.what.ends_with(direction)) return std::string(c.op) + direction;
  return c.op;
}

std::string shape_of(const OpCall& c) { return cat(shape_text(c.args), "; ", static_cast<int64_t>(c.cost.bytes)); }

double distance(double a, double b) { return a > 0 && b > 0 ? std::fabs(std::log(a / b)) : a == b ? 0 : 10; }

// Of one call, one step or a ratio: a value from a file that others may have written.
bool sound(double x) { return x > 1e-12 && x < 1e7; }
bool cost(double x) { return x >= 0 && x < 1e24; }

}  // namespace

std::string transport_between(std::string_view backend, int machines) {
  return machines > 1 ? cat(backend, " between ", machines, " machines") : std::string(backend);
}

void MeasuredTimes::set(const OpCall& c, OpSeconds seconds) {
  ops_[kind_of(c)][shape_of(c)] = {c.cost.flops, c.cost.bytes, seconds};
}

size_t MeasuredTimes::ops() const {
  size_t n = 0;
  for (const auto& [unused, shapes] : ops_) n += shapes.size();
  return n;
}

bool MeasuredTimes::measured(const OpCall& c) const {
  const auto kind = ops_.find(kind_of(c));
  return kind != ops_.end() && kind->second.count(shape_of(c)) > 0;
}

double MeasuredTimes::seconds(const OpCall& c) const {
  const auto of_step = [&](const OpTime& t) {
    return static_cast<double>(c.calls) * t.seconds.call + static_cast<double>(c.packs) * t.seconds.pack;
  };
  const auto kind = ops_.find(kind_of(c));
  if (kind == ops_.end()) return std::numeric_limits<double>::quiet_NaN();
  const auto same = kind->second.find(shape_of(c));
  if (same != kind->second.end()) return of_step(same->second);
  const OpTime* nearest = nullptr;
  const auto far = [&](const OpTime& t) { return distance(c.cost.flops, t.flops) + distance(c.cost.bytes, t.bytes); };
  for (const auto& [unused, t] : kind->second)
    if (nearest == nullptr || far(t) < far(*nearest)) nearest = &t;
  const bool by_flops = c.cost.flops > 0 && nearest->flops > 0;
  const double scale = by_flops ? c.cost.flops / nearest->flops : c.cost.bytes / std::max(nearest->bytes, 1.);
  return of_step(*nearest) * scale;
}

void MeasuredTimes::set(std::string_view transport, CommOp op, int64_t ranks, int64_t bytes, double seconds) {
  comm_[{std::string(transport), {static_cast<int>(op), ranks}}][bytes] = seconds;
}

double MeasuredTimes::seconds(std::string_view transport, CommOp op, int64_t ranks, double bytes) const {
  if (ranks == 1) return 0;
  const std::map<int64_t, double>* nearest = nullptr;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const auto& [key, sizes] : comm_) {
    const int64_t far = std::abs(key.second.second - ranks);
    if (key.first == transport && key.second.first == static_cast<int>(op) && far < least)
      least = far, nearest = &sizes;
  }
  if (nearest == nullptr) return std::numeric_limits<double>::quiet_NaN();
  const std::map<int64_t, double>& sizes = *nearest;
  const auto above = sizes.lower_bound(static_cast<int64_t>(bytes));
  if (above == sizes.begin()) return above->second;  // latency
  const auto below = std::prev(above);
  if (above == sizes.end()) return below->second * bytes / static_cast<double>(below->first);
  const double share = (bytes - static_cast<double>(below->first)) / static_cast<double>(above->first - below->first);
  return below->second + share * (above->second - below->second);
}

void MeasuredTimes::add_run(const RunRatios& r) {
  runs_.push_back(r);
  const auto oldest = [&](const RunRatios& x) { return x.what == r.what; };
  if (runs(r.what) > kMostRuns) runs_.erase(std::find_if(runs_.begin(), runs_.end(), oldest));
  if (runs_.size() > kMostKept) runs_.erase(runs_.begin());
}

size_t MeasuredTimes::runs(const std::string& what) const {
  const auto of = [&](const RunRatios& r) { return r.what == what; };
  return static_cast<size_t>(std::count_if(runs_.begin(), runs_.end(), of));
}

RunRatios MeasuredTimes::corrections(const std::string& what) const {
  RunRatios out{what};
  for (size_t k = 0; k < RunRatios::kClasses && runs(what) > 0; ++k) {
    std::vector<double> ratios;
    for (const RunRatios& r : runs_)
      if (r.what == what) ratios.push_back(r.of[k]);
    const auto middle = ratios.begin() + static_cast<ptrdiff_t>(ratios.size() / 2);
    std::nth_element(ratios.begin(), middle, ratios.end());
    out.of[k] = std::clamp(*middle, 1 / kMostCorrection, kMostCorrection);
  }
  return out;
}

double MeasuredTimes::step(const std::string& layout) const {
  const auto it = steps_.find(layout);
  return it == steps_.end() ? std::numeric_limits<double>::quiet_NaN() : it->second;
}

std::string MeasuredTimes::file() const {
  const std::string folder = cache_folder();
  if (folder.empty()) return "";
  std::string name;
  for (const char c : on_.device) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '-';
  return cat(folder, "/times-", name, "-", name_of(on_.dtype), "-", on_.threads, "x", on_.together, ".json");
}

void MeasuredTimes::save() const {
  Json ops = Json::array(), comm = Json::array();
  for (const auto& [kind, shapes] : ops_)
    for (const auto& [shape, t] : shapes)
      ops.push_back({{"op", kind},
                     {"shape", shape},
                     {"flops", t.flops},
                     {"bytes", t.bytes},
                     {"seconds", t.seconds.call},
                     {"pack_seconds", t.seconds.pack}});
  for (const auto& [key, sizes] : comm_)
    for (const auto& [bytes, seconds] : sizes)
      comm.push_back({{"transport", key.first},
                      {"call", key.second.first},
                      {"ranks", key.second.second},
                      {"bytes", bytes},
                      {"seconds", seconds}});
  Json runs = Json::array();
  for (const RunRatios& r : runs_) runs.push_back({{"what", r.what}, {"ratios", r.of}});
  Json steps = Json::array();
  for (const auto& [layout, seconds] : steps_) steps.push_back({{"layout", layout}, {"seconds", seconds}});
  const Json j{{"version", program_version()},
               {"device", on_.device},
               {"dtype", name_of(on_.dtype)},
               {"threads", on_.threads},
               {"together", on_.together},
               {"ops", ops},
               {"comm", comm},
               {"runs", runs},
               {"steps", steps}};
  const std::string path = file();
  GT_REQUIRE(!path.empty(), Exit::kIo, "no folder for measured times: set HOME or XDG_CACHE_HOME");
  const std::string problem = write_cached(path, j.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
  GT_REQUIRE(problem.empty(), Exit::kIo, problem);
}

std::optional<MeasuredTimes> MeasuredTimes::load(const MeasuredOn& on) try {
  MeasuredTimes t(on);
  if (t.file().empty()) return {};
  const auto j = parse_json<nlohmann::json>(read_cached(t.file(), kMostBytes), t.file(), {.bytes = kMostBytes});
  if (field<std::string>(j, "version") != program_version() || field<std::string>(j, "device") != on.device ||
      field<std::string>(j, "dtype") != name_of(on.dtype) || field<int64_t>(j, "threads") != on.threads ||
      field<int64_t>(j, "together") != on.together)
    return {};
  for (const auto& o : member(j, "ops")) {
    const OpTime time{field<double>(o, "flops"),
                      field<double>(o, "bytes"),
                      {field<double>(o, "seconds"), field<double>(o, "pack_seconds")}};
    if (!sound(time.seconds.call) || !(time.seconds.pack >= 0 && time.seconds.pack < 1e7) || !cost(time.flops) ||
        !cost(time.bytes))
      return {};
    t.ops_[field<std::string>(o, "op")][field<std::string>(o, "shape")] = time;
  }
  for (const auto& c : member(j, "comm")) {
    const auto call = field<int64_t>(c, "call"), bytes = field<int64_t>(c, "bytes");
    const auto seconds = field<double>(c, "seconds");
    const auto ranks = field<int64_t>(c, "ranks");
    if (call < 0 || call >= kNumCommOps || bytes <= 0 || ranks < 1 || ranks > (1 << 24) || !sound(seconds)) return {};
    t.set(field<std::string>(c, "transport"), static_cast<CommOp>(call), ranks, bytes, seconds);
  }
  for (const auto& r : member(j, "runs")) {
    RunRatios run{field<std::string>(r, "what")};
    member(r, "ratios").get_to(run.of);
    if (!std::all_of(run.of.begin(), run.of.end(), sound)) return {};
    t.add_run(run);
  }
  for (const auto& s : member(j, "steps")) {
    const auto seconds = field<double>(s, "seconds");
    if (!sound(seconds)) return {};
    t.set_step(field<std::string>(s, "layout"), seconds);
  }
  return t;
} catch (const Error&) { return {}; } catch (const nlohmann::json::exception&) {
  return {};
}

}  // namespace gt
