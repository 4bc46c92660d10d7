#include "launch/tools/plan/changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "launch/options/console_text.h"
#include "launch/tools/plan/memory_model.h"
#include "launch/tools/verify/layouts.h"

namespace gt {
namespace {

constexpr double kFaster = 0.99;  // step time below which a change counts as faster
constexpr size_t kMostChanges = 3;

using Setting = std::pair<std::string, std::string>;

// Flags that differ, with the values that they then have.
std::string flags_text(const std::vector<Setting>& settings) {
  std::string out;
  for (const auto& [key, value] : settings) out += fmt::format("{}--{} {}", out.empty() ? "" : " ", key, value);
  return out;
}

// Settings of each change. The global batch stays: grad_accum follows from micro_batch and dp.
std::vector<std::vector<Setting>> changes_of(const Config& c) {
  std::vector<std::vector<Setting>> out;
  const auto& p = c.parallel;
  const auto set = [](int64_t n) { return std::to_string(n); };
  const auto layout = [&](int64_t tp, int64_t pp, int64_t dp, int64_t micro) {
    if (tp < 1 || pp < 1 || dp < 1 || micro < 1 || c.train.global_batch % (dp * micro) != 0) return;
    std::vector<Setting> s{{"train.grad_accum", set(c.train.global_batch / (dp * micro))}};
    if (tp != p.tp) s.insert(s.begin(), {"parallel.tp", set(tp)});
    if (pp != p.pp) s.insert(s.begin(), {"parallel.pp", set(pp)});
    if (dp != p.dp) s.insert(s.begin(), {"parallel.dp", set(dp)});
    if (micro != c.train.micro_batch) s.insert(s.begin(), {"train.micro_batch", set(micro)});
    if (pp == 1 && p.vpp > 1) s.push_back({"parallel.vpp", "1"}), s.push_back({"parallel.schedule", "1f1b"});
    out.push_back(std::move(s));
  };
  for (const Recompute how : {Recompute::kNone, Recompute::kSelective, Recompute::kFull})
    if (p.recompute != how) out.push_back({{"parallel.recompute", name_of(how)}});
  for (int64_t stage = 0; p.dp > 1 && stage <= 3; ++stage)
    if (std::abs(stage - c.zero.stage) == 1) out.push_back({{"zero.stage", set(stage)}});
  layout(p.tp, p.pp, p.dp, 2 * c.train.micro_batch);
  if (c.train.micro_batch % 2 == 0) layout(p.tp, p.pp, p.dp, c.train.micro_batch / 2);
  if (p.dp % 2 == 0) {
    layout(2 * p.tp, p.pp, p.dp / 2, c.train.micro_batch);
    layout(p.tp, 2 * p.pp, p.dp / 2, c.train.micro_batch);
  }
  if (p.tp % 2 == 0) layout(p.tp / 2, p.pp, 2 * p.dp, c.train.micro_batch);
  if (p.pp % 2 == 0) layout(p.tp, p.pp / 2, 2 * p.dp, c.train.micro_batch);
  if (p.tp > 1 && !c.sequence_parallel()) out.push_back({{"parallel.sequence_parallel", "true"}});
  if (p.pp > 1 && p.vpp == 1)
    out.push_back({{"parallel.schedule", "interleaved"}, {"parallel.vpp", "2"}, {"parallel.extra_in_flight", "0"}});
  if (p.vpp > 1) out.push_back({{"parallel.schedule", "1f1b"}, {"parallel.vpp", "1"}});
  return out;
}

}  // namespace

std::vector<ChangedConfig> single_changes(const Config& c) {
  std::vector<ChangedConfig> out;
  for (const std::vector<Setting>& settings : changes_of(c)) {
    CheckedLayout checked = check_layout(c, settings);
    if (checked.problems.empty() && checked.config.train.global_batch == c.train.global_batch)
      out.push_back({flags_text(settings), std::move(checked.config)});
  }
  return out;
}

std::vector<PlanChange> changes_that_fit(const Config& c, const std::function<RunPlan(const Config&)>& plan) {
  std::vector<PlanChange> out;
  for (const ChangedConfig& changed : single_changes(c)) {
    PlanChange change{changed.flags, plan(changed.config)};
    if (change.plan.fits() && std::isfinite(change.plan.terms.total())) out.push_back(std::move(change));
  }
  std::stable_sort(out.begin(), out.end(), [](const PlanChange& a, const PlanChange& b) {
    return a.plan.terms.total() < b.plan.terms.total();
  });
  return out;
}

std::string why_text(const RunPlan& p, const std::vector<PlanChange>& changes) {
  const double step = p.terms.total();
  const auto terms = p.terms.list();
  const auto most =
      std::max_element(terms.begin(), terms.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  Rows rows{{"limits", p.fits() ? fmt::format("{}, {:.0f} % of the step", most->first, 100 * most->second / step)
                                : fmt::format("memory: {} too much", format_bytes(p.needed - p.usable))}};
  for (const PlanChange& c : changes) {
    const double faster = c.plan.terms.total() / step;
    if (p.fits() && faster > kFaster) break;
    if (rows.size() > kMostChanges) break;
    rows.push_back({rows.size() > 1 ? ""
                    : p.fits()      ? "faster"
                                    : "to fit",
                    fmt::format("{}: step {:+.1f} %, memory {} ({:.0f} % of usable)", c.flags, 100 * (faster - 1),
                                format_bytes(c.plan.needed), 100 * c.plan.needed / c.plan.usable)});
  }
  if (rows.size() == 1)
    rows.push_back({p.fits() ? "faster" : "to fit",
                    p.fits() ? "no change of one decision is 1 % faster; --search compares all layouts"
                             : "no change of one decision fits; --search compares all layouts, or use more devices"});
  return block(rows);
}

std::string zero_table(const Config& base) {
  std::string out = fmt::format("{:<6} {:>18} {:>12}   {}\n", "ZeRO", "bytes a parameter", "state", "sharded over dp");
  static const char* const kSharded[] = {"nothing", "optimizer state", "optimizer state and gradients",
                                         "optimizer state, gradients and weights"};
  Config c = base;
  for (int64_t stage = 0; stage <= 3; ++stage) {
    c.zero.stage = stage;
    const Workload w = workload_of(c);
    const double each = w.kept_bytes + w.sharded_bytes / static_cast<double>(w.dp);
    double state = 0;
    for (int64_t k = 0; k < w.pp; ++k) state = std::max(state, stage_memory(w, k).state);
    out += fmt::format("{:<6} {:>18.4g} {:>12}   {}\n", stage, each, format_bytes(state),
                       kSharded[static_cast<size_t>(stage)]);
  }
  return out;
}

}  // namespace gt
