#include "launch/tools/plan/calibrate.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <random>

#include "kernels/core/check.h"
#include "launch/options/json_text.h"

namespace gt {
namespace {

constexpr int kEvaluations = 8000;
constexpr double kPrior = 0.003, kFewRows = 23;  // a profile of fewer rows stays nearer to its prior
constexpr double kMostHidden = 0.98;
constexpr double kLargestSize = 1e18;  // of a block, in files

using RowRefs = std::vector<const PlanRow*>;

double log_error(const PlanRow& r, const MachineModel& m) {
  return std::log(step_terms(r.work, calibrated(r.machine, m)).total() / r.seconds);
}

double objective(const RowRefs& rows, const MachineModel& m, const MachineModel& prior) {
  double sum = 0, squares = 0, drift = 0;
  for (const PlanRow* r : rows) {
    const double e = log_error(*r, m);
    sum += std::fabs(e), squares += e * e;
  }
  for (const MachineConstant& c : machine_constants()) {
    const double z = std::log(m.*c.value / (prior.*c.value)) / c.sigma;
    drift += z * z;
  }
  const auto n = static_cast<double>(rows.size());
  const double strength = kPrior * (1 + (kFewRows / n) * (kFewRows / n));
  return sum / n + 0.3 * std::sqrt(squares / n) + strength * drift / static_cast<double>(machine_constants().size());
}

MachineModel fit(const RowRefs& rows, const MachineModel& prior) {
  if (rows.empty()) return prior;
  std::mt19937_64 random(1);
  const auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  const auto normal = [&] {  // Box-Muller: std::normal_distribution differs between libraries
    return std::sqrt(-2 * std::log(1 - uniform())) * std::cos(2 * 3.14159265358979323846 * uniform());
  };
  MachineModel best = prior;
  double least = objective(rows, best, prior);
  for (int k = 0; k < kEvaluations; ++k) {
    const double step = 0.5 * std::pow(0.02, static_cast<double>(k) / kEvaluations) * std::exp(0.7 * normal());
    MachineModel m = best;
    for (const MachineConstant& c : machine_constants())
      if (uniform() < 0.3) m.*c.value *= std::exp(normal() * c.sigma * step);
    m.hidden = std::min(m.hidden, kMostHidden);
    const double now = objective(rows, m, prior);
    if (now < least) least = now, best = m;
  }
  return best;
}

std::string device_of(const PlanRow& r) { return cat(r.machine.peak, "/", r.capacity > 20e9 ? "large" : "small"); }

std::map<std::string, RowRefs> by_profile(const std::vector<PlanRow>& rows) {
  std::map<std::string, RowRefs> out;
  for (const PlanRow& r : rows)
    if (r.graded && r.seconds > 0 && r.serves("time")) out[r.profile].push_back(&r);
  return out;
}

MachineModel fit_blocks(const RowRefs& rows, MachineModel m) {
  constexpr double kPriorRows = 0.5, kLeast = 0.3;
  std::map<BlockShape, std::pair<double, int>> sums;
  for (const PlanRow* r : rows) {
    const StepTerms t = step_terms(r->work, calibrated(r->machine, m));
    auto& [sum, n] = sums[r->work.block_shape()];
    sum += std::log(std::max(kLeast, 1 + (r->seconds - t.total()) / t.blocks())), ++n;
  }
  for (const auto& [shape, s] : sums) m.measured_blocks[shape] = std::exp(s.first / (s.second + kPriorRows));
  return m;
}

// Prior of each profile: its device's, shifted by the mean drift of the other profiles of that device. `nic` is
// excluded, because networks differ.
MachineProfiles priors_of(const std::map<std::string, RowRefs>& profiles) {
  MachineProfiles first, out;
  for (const auto& [name, rows] : profiles) first[name] = fit(rows, rows.front()->machine);
  for (const auto& [name, rows] : profiles) {
    MachineModel prior = rows.front()->machine;
    for (const MachineConstant& c : machine_constants()) {
      if (c.value == &MachineModel::nic) continue;
      double weight = 1, drift = 0;
      for (const auto& [other, of] : profiles) {
        if (other == name || device_of(*of.front()) != device_of(*rows.front())) continue;
        const double w = static_cast<double>(of.size()) / (static_cast<double>(of.size()) + 3);
        weight += w, drift += w * std::log(first[other].*c.value / (of.front()->machine.*c.value));
      }
      prior.*c.value *= std::exp(drift / weight);
    }
    out[name] = prior;
  }
  return out;
}

// Rows with equal keys have equal model and layout, so they share a fold.
std::string layout_key(const PlanRow& r) {
  const Workload& w = r.work;
  return cat(w.layers, " ", w.hidden, " ", w.seq, " ", w.tp, " ", w.pp, " ", w.dp, " ", w.global_batch);
}

}  // namespace

MachineModel calibrated(const MachineModel& machine, const MachineModel& profile) {
  MachineModel m = machine;
  for (const MachineConstant& c : machine_constants()) m.*c.value = profile.*c.value;
  m.measured_blocks = profile.measured_blocks;
  return m;
}

MachineProfiles calibrate_profiles(const std::vector<PlanRow>& rows) {
  const auto profiles = by_profile(rows);
  MachineProfiles out = priors_of(profiles);
  for (auto& [name, model] : out) model = fit_blocks(profiles.at(name), fit(profiles.at(name), model));
  return out;
}

std::vector<double> unseen_errors(const std::vector<PlanRow>& rows, int folds) {
  const auto profiles = by_profile(rows);
  const MachineProfiles priors = priors_of(profiles);
  std::vector<double> out(rows.size(), std::numeric_limits<double>::quiet_NaN());
  for (const auto& [name, all] : profiles) {
    std::map<std::string, int> fold_of;
    for (const PlanRow* r : all) fold_of.emplace(layout_key(*r), 0);
    std::vector<std::string> keys;
    for (const auto& [key, unused] : fold_of) keys.push_back(key);
    std::mt19937_64 random(3);
    for (size_t i = keys.size(); i > 1; --i) std::swap(keys[i - 1], keys[random() % i]);
    for (size_t i = 0; i < keys.size(); ++i) fold_of[keys[i]] = static_cast<int>(i) % folds;
    for (int f = 0; f < folds; ++f) {
      RowRefs kept;
      std::copy_if(all.begin(), all.end(), std::back_inserter(kept),
                   [&](const PlanRow* r) { return fold_of[layout_key(*r)] != f; });
      if (kept.size() == all.size()) continue;
      const MachineModel m = fit_blocks(kept, fit(kept, priors.at(name)));
      for (const PlanRow* r : all)
        if (fold_of[layout_key(*r)] == f) out[static_cast<size_t>(r - rows.data())] = std::expm1(log_error(*r, m));
    }
  }
  return out;
}

void write_profiles(const MachineProfiles& profiles, const std::string& path) {
  std::string text = "{";
  for (const auto& [name, m] : profiles) {
    text += text.size() == 1 ? "\n  " : ",\n  ";
    append_json_string(text, name);
    text += ": {";
    for (const MachineConstant& c : machine_constants())
      text += cat(&c == &machine_constants().front() ? "" : ", ", "\"", c.name, "\": ", json_number(m.*c.value));
    text += ", \"measured_blocks\": [";
    for (const auto& [key, ratio] : m.measured_blocks) {
      BlockShape shape = key;
      text += text.back() == '[' ? "\n    {" : ",\n    {";
      shape.fields([&](const char* field, int64_t value) { text += cat("\"", field, "\": ", value, ", "); });
      text += cat("\"ratio\": ", json_number(ratio), "}");
    }
    text += "]}";
  }
  std::ofstream out(path);
  out << text << "\n}\n";
  out.close();
  GT_REQUIRE(out, Exit::kIo, path, ": cannot be written");
}

MachineProfiles read_profiles(const std::string& path) {
  const JsonValue json = parse_json(read_json_file(path), path);
  GT_REQUIRE(json.kind == JsonValue::Kind::kObject, Exit::kUsage, path, ": expected an object of profiles");
  MachineProfiles out;
  for (size_t i = 0; i < json.items.size(); ++i) {
    const JsonValue& profile = json.items[i];
    const auto number_of = [&](const JsonValue& in, const char* name, bool or_zero) {
      const JsonValue* value = in.find(name);
      double x = 0;
      const bool number = value != nullptr && value->kind == JsonValue::Kind::kNumber && parse_double(value->text, x);
      GT_REQUIRE(number && (x > 0 || (or_zero && x == 0)), Exit::kUsage, path, ":", in.line, ": profile \"",
                 json.keys[i], "\": expected ", name, or_zero ? " of 0 or more" : " above 0");
      return x;
    };
    MachineModel& m = out[json.keys[i]];
    for (const MachineConstant& c : machine_constants()) m.*c.value = number_of(profile, c.name, false);
    const JsonValue* blocks = profile.find("measured_blocks");
    if (blocks == nullptr) continue;  // of a version without
    GT_REQUIRE(blocks->kind == JsonValue::Kind::kArray, Exit::kUsage, path, ":", blocks->line, ": profile \"",
               json.keys[i], "\": expected a list of measured_blocks");
    for (const JsonValue& block : blocks->items) {
      BlockShape shape;
      shape.fields([&](const char* name, int64_t& value) {
        value = static_cast<int64_t>(std::min(number_of(block, name, true), kLargestSize));
      });
      m.measured_blocks[shape] = number_of(block, "ratio", false);
    }
  }
  return out;
}

}  // namespace gt
