#include "launch/engine/measure/step_clock.h"

#include <algorithm>
#include <utility>

#include "kernels/core/host.h"

namespace gt {

void StepClock::begin_step() {
  Marks& m = marks_of(++step_);
  m.clock.restart(), m.complete = false;
  m.at[0] = m.clock.mark();
}

void StepClock::end_phase(Phase p) {
  Marks& m = marks_of(step_);
  m.at[static_cast<size_t>(p) + 1] = m.clock.mark();
  m.complete = p == Phase::kGather;
}

const Timers& StepClock::own_times(const PipelineExecutor& train) {
  if (!marks().clock.asynchronous()) measure_pipeline(train);
  return own_;
}

void StepClock::settle(PipelineExecutor& train) {
  Marks& m = marks_of(step_);
  if (!m.clock.asynchronous()) return;
  m.clock.anchor(m.at[static_cast<size_t>(Phase::kNorms) + 1], now());
  train.settle(m.clock);
  measure_pipeline(train);  // of this step, exchanged in the next one
}

// Measures the latest step whose pipeline phase is complete.
void StepClock::measure_pipeline(const PipelineExecutor& train) {
  std::fill_n(own_.begin(), kReduceTime, 0.);
  for (const ActionTime& t : train.timeline()) {
    const Act act = t.action.act;
    const int kind = act == Act::kForward         ? (t.last == act ? kForwardTime : kMicrobatchTime)
                     : act == Act::kBackward      ? kBackwardTime
                     : act == Act::kBackwardInput ? (t.last == act ? kInputGradTime : kBackwardTime)
                                                  : kWeightGradTime;
    own_[static_cast<size_t>(kind)] += t.end - t.begin - t.inside.total();
    own_[kTpTime] += t.inside.tp;
  }
  own_[kWaitTime] = train.wait_seconds();
  own_[kPipelineTime] = train.timeline().empty() ? 0 : train.timeline().back().end;
}

double StepClock::measure_update(const PipelineExecutor& train) {
  const Marks& m = marks_of(marks().clock.asynchronous() ? step_ - 1 : step_);
  if (!m.complete) return 0;
  for (size_t t = kReduceTime; t <= kGatherTime; ++t)
    own_[t] = m.length(static_cast<Phase>(t - kReduceTime + static_cast<size_t>(Phase::kReduce)));
  for (const ActionTime& t : train.transfers())
    if (t.action.act == Act::kReduceGrads || t.action.act == Act::kReduceTied) own_[kReduceTime] += t.end - t.begin;
  for (const ActionTime& t : train.timeline()) {
    own_[kReduceTime] += t.inside.reductions;
    own_[kGatherTime] += t.inside.gathers;
  }
  // Without replicas nothing is exchanged: the cost of these phases counts as update.
  const auto to_update = [&](StageTime t) { own_[kOptimizerTime] += std::exchange(own_[t], 0); };
  if (mesh_.size(Axis::kDp) == 1) to_update(kGatherTime);
  if (mesh_.size(Axis::kDp) == 1 && mesh_.embedding_group().size() == 1) to_update(kReduceTime);
  return m.clock.at(m.at.back()) - m.clock.at(m.at.front());
}

PhaseEnds StepClock::phases() const {
  const Marks& m = marks();
  if (m.clock.asynchronous()) device_.synchronize(stream_);
  PhaseEnds ends{};
  for (size_t i = 0; m.complete && i < ends.size(); ++i) ends[i] = m.clock.at(m.at[i]);
  return ends;
}

}  // namespace gt
