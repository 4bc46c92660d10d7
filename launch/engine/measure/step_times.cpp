#include "launch/engine/measure/step_times.h"

#include <fmt/format.h>

#include <algorithm>

namespace gt {

double StepTimes::busy(int stage) const {
  return at(stage, kForwardTime) + at(stage, kBackwardTime) + at(stage, kInputGradTime) + at(stage, kWeightGradTime) +
         at(stage, kMicrobatchTime);
}

Timers StepTimes::mean() const {
  Timers out{};
  for (int k = 0; k < stages(); ++k)
    for (int t = 0; t < kNumStageTimes; ++t) out[static_cast<size_t>(t)] += at(k, static_cast<StageTime>(t)) / stages();
  return out;
}

Timers StepTimes::longest() const {
  Timers out{};
  for (int k = 0; k < stages(); ++k)
    for (int t = 0; t < kNumStageTimes; ++t)
      out[static_cast<size_t>(t)] = std::max(out[static_cast<size_t>(t)], at(k, static_cast<StageTime>(t)));
  return out;
}

double StepTimes::mean_busy() const {
  double sum = 0;
  for (int k = 0; k < stages(); ++k) sum += busy(k) + at(k, kOptimizerTime);
  return stages() > 0 ? sum / stages() : 0;
}

double StepTimes::pipeline_seconds() const {
  double most = 0;
  for (int k = 0; k < stages(); ++k) most = std::max(most, at(k, kPipelineTime));
  return most;
}

double StepTimes::pipeline_bubble() const {
  double sum = 0;
  for (int k = 0; k < stages(); ++k) sum += busy(k) + at(k, kTpTime);
  const double whole = pipeline_seconds() * stages();
  return whole > 0 ? 1 - sum / whole : 0;
}

double StepTimes::mean_exposed() const {
  double sum = 0;
  for (int k = 0; k < stages(); ++k) sum += at(k, kTpTime) + at(k, kReduceTime) + at(k, kGatherTime);
  return stages() > 0 ? sum / stages() : 0;
}

namespace {
bool of_update(int t) { return t >= kReduceTime && t <= kGatherTime; }  // exchanged in the next step
}  // namespace

const StepParts& StepBreakdown::add(int64_t step, const StepTimes& times, double step_seconds) {
  StepParts& came = arrived_.emplace_back(StepParts{step, step_seconds, {}});
  for (int k = 0; k < times.stages(); ++k)
    for (int t = 0; t < kNumStageTimes; ++t) came.times.push_back(times.at(k, static_cast<StageTime>(t)));
  if (arrived_.size() < waits_) return complete_;
  complete_ = arrived_.front();
  const auto &update = came.times, &pipeline = arrived_[arrived_.size() - 2].times;
  for (size_t i = 0; i < complete_.times.size(); ++i) {
    const int t = static_cast<int>(i % kNumStageTimes);
    if (t != kDataTime) complete_.times[i] = of_update(t) ? update[i] : pipeline[i];
  }
  arrived_.pop_front();
  if (steps_++ < excluded_) return complete_;
  sums_.resize(complete_.times.size());
  for (size_t i = 0; i < sums_.size(); ++i) sums_[i] += complete_.times[i];
  seconds_ += complete_.seconds;
  return complete_;
}

std::vector<Timers> StepBreakdown::means(double& step_seconds) const {
  std::vector<Timers> out;
  if (sums_.empty()) return out;
  const double steps = static_cast<double>(steps_ - excluded_);
  const StepTimes sums(sums_);
  for (int k = 0; k < sums.stages(); ++k) {
    Timers& t = out.emplace_back();
    for (size_t i = 0; i < t.size(); ++i) t[i] = sums.at(k, static_cast<StageTime>(i)) / steps;
  }
  step_seconds = seconds_ / steps;
  return out;
}

std::string StepBreakdown::table() const {
  if (sums_.empty()) return "";
  const StepTimes sums(sums_);
  const double to_ms = 1e3 / static_cast<double>(steps_ - excluded_);
  std::vector<double> parts(static_cast<size_t>(sums.stages()));
  std::string out = fmt::format("{:<18}", "ms a step");
  for (int k = 0; k < sums.stages(); ++k) out += fmt::format("{:>9}", fmt::format("stage{}", k));
  for (int t = 0; t < kNumStageTimes; ++t) {
    double all = 0;
    for (int k = 0; k < sums.stages(); ++k) all += sums.at(k, static_cast<StageTime>(t));
    if (kTimerNames[t] == nullptr || all == 0) continue;
    out += fmt::format("\n{:<18}", kTimerNames[t]);
    for (int k = 0; k < sums.stages(); ++k) {
      const double x = sums.at(k, static_cast<StageTime>(t));
      parts[static_cast<size_t>(k)] += x;
      out += fmt::format("{:9.1f}", x * to_ms);
    }
  }
  // Rank 0's clock defines the step time; the parts of another rank may exceed it by its lag.
  out += fmt::format("\n{:<18}", "other");
  for (double x : parts) out += fmt::format("{:9.1f}", std::max(0., seconds_ - x) * to_ms);
  out += fmt::format("\n{:<18}", "step");
  for (double x : parts) out += fmt::format("{:9.1f}", std::max(seconds_, x) * to_ms);
  return out;
}

}  // namespace gt
