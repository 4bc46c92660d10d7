#include "launch/tools/plan/layout_trials.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/core/check.h"
#include "kernels/core/host.h"
#include "kernels/core/json.h"
#include "kernels/core/text.h"
#include "launch/options/output.h"
#include "launch/tools/bench/bench_stats.h"
#include "launch/tools/bench/shell_run.h"

namespace gt {
namespace {

constexpr double kMostSeconds = 150;
constexpr int64_t kLeastSteps = 3, kMostSteps = 20;

struct Round {
  size_t layouts;  // at most, those fastest so far
  double seconds;  // of training
};
constexpr Round kRounds[] = {{64, 1}, {8, 2}, {8, 2}, {4, 3}, {4, 3}};

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Trial {
  const RunPlan* plan;
  std::map<size_t, double> medians = {};  // seconds of a step, by round; kNever: the job failed
  double seconds = kNever;
};

// The machine's speed drifts by more than layouts differ: by its change from the first round to `round`, the median
// over the layouts, times of rounds become comparable.
double drift(std::span<const Trial> trials, size_t round) {
  std::vector<double> ratios;
  for (const Trial& t : trials)
    if (const auto it = t.medians.find(round); it != t.medians.end() && std::isfinite(it->second))
      ratios.push_back(it->second / t.medians.at(0));
  return ratios.empty() ? 1 : spread_of(std::move(ratios)).median;
}

// Orders trials by the mean of their rounds.
void rank(std::vector<Trial>& trials) {
  std::vector<double> drifts;
  for (size_t round = 0; round < std::size(kRounds); ++round) drifts.push_back(drift(trials, round));
  for (Trial& t : trials) {
    double sum = 0;
    for (const auto& [round, seconds] : t.medians) sum += seconds / drifts[round];
    if (!t.medians.empty()) t.seconds = sum / static_cast<double>(t.medians.size());
  }
  std::stable_sort(trials.begin(), trials.end(), [](const Trial& a, const Trial& b) { return a.seconds < b.seconds; });
}

struct Steps {
  int64_t warmup, measured;
  double seconds;  // planned
};
Steps steps_of(const RunPlan& p, double seconds) {
  const double step = p.terms.total();
  const auto measured = std::clamp(static_cast<int64_t>(seconds / step), kLeastSteps, kMostSteps);
  const int64_t warmup = 1 + measured / 5;
  return {warmup, measured, step * static_cast<double>(warmup + measured)};
}

// Trains a layout by `gpttrain bench`. Returns the median seconds of a step; kNever if the job fails.
double train(const RunPlan& p, const Steps& steps, WorkLine& line) {
  Config c = p.config;
  c.device.kind = DeviceChoice::kCpu;
  const MemoryFile config(config_json(c)), record;
  const ShellResult r = run_shell(fmt::format("{} bench --config {} --steps {} --warmup {} --out {}", this_program(),
                                              config.path(), steps.measured, steps.warmup, record.path()));
  if (r.status != 0) {
    line.erase();
    fmt::print(stderr, "trial of {}: ended with {}:\n{}\n", layout_flags(p.config), r.status, tail(r.out));
    return kNever;
  }
  return parse_json<nlohmann::json>(read_whole_file(record.path()), "record of the trial", kOwnJson)
      .at("step_seconds")
      .at("median")
      .get<double>();
}

}  // namespace

void try_layouts(std::span<const RunPlan> plans, MeasuredTimes& times) {
  std::vector<Trial> trials;
  for (const RunPlan& p : plans) trials.push_back({&p});
  const double begin = now();
  WorkLine line;
  double shown = 0;
  size_t done = 0;
  for (size_t round = 0; round < std::size(kRounds); ++round) {
    // Jobs that failed, and layouts for which the first round had no time, are out.
    const auto able = std::count_if(trials.begin(), trials.end(),
                                    [&](const Trial& t) { return round == 0 || std::isfinite(t.seconds); });
    const size_t entrants = std::min(static_cast<size_t>(able), kRounds[round].layouts);
    for (size_t k = 0; k < entrants; ++k, ++done) {
      const Steps steps = steps_of(*trials[k].plan, kRounds[round].seconds);
      if (now() - begin + steps.seconds > kMostSeconds) break;
      if (now() - shown > line.seconds()) {
        line.show(
            fmt::format("trials: layout {} of {}, round {} of {}", k + 1, entrants, round + 1, std::size(kRounds)));
        shown = now();
      }
      trials[k].medians[round] = train(*trials[k].plan, steps, line);
    }
    rank(trials);
    for (const Trial& t : trials)
      if (std::isfinite(t.seconds)) times.set_step(layout_key(t.plan->config), t.seconds);
    times.save();  // kept if the rest is interrupted
  }
  line.erase();
  std::erase_if(trials, [](const Trial& t) { return !std::isfinite(t.seconds); });
  for (auto t = trials.rbegin(); t != trials.rend(); ++t) {  // of many runs the newest are kept: those of the fastest
    const Config& c = t->plan->config;
    RunRatios ratios{correction_key(c.model, static_cast<int>(c.world()))};
    ratios.of.fill(t->seconds / t->plan->terms.total());
    times.add_run(ratios);
  }
  times.save();
  if (done == 0)
    fmt::print(stderr, "no layout was trained: a trial would take more than {:.0f} s\n", kMostSeconds);
  else
    fmt::print(stderr, "trained {} layouts, {} trials in {:.0f} s\n", trials.size(), done, now() - begin);
}

}  // namespace gt
