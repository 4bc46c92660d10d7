// What a run reports besides its log: a list of observers, which RunReporter calls around each step, on every rank and
// in the order of the list. A new figure, table or file of a run is an observer, in a file of this folder, with a line
// in observers_of().
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/engine/measure/op_watch.h"
#include "launch/observe/banner.h"
#include "launch/observe/step_medians.h"
#include "launch/train/run_state.h"
#include "launch/train/training_data.h"

namespace gt {

// The run as observers read it, and what they share.
struct RunView {
  const RankContext& rank;
  const Config& config;
  Engine& engine;
  OpWatch& ops;
  const RunLoader& loader;
  const RunState& state;
  MetricsWriter* log = nullptr;  // nullptr before the start, and on every rank but 0
  double step_ended = 0;         // now() from which the next step's time counts
  StepMedians medians;           // on rank 0, like the next two
  std::optional<StepBreakdown> breakdown = {};
  double mfu_at_rate = kUnknown;  // MFU at one token per second

  void event(const std::string& text, bool warning = false) const;  // at the state's step
  void warn(int64_t step, const std::string& text) const;
};

class RunObserver {
 public:
  explicit RunObserver(RunView& run) : run_(run) {}
  virtual ~RunObserver() = default;
  RunObserver(const RunObserver&) = delete;
  RunObserver& operator=(const RunObserver&) = delete;
  virtual void start(BannerFacts&) {}  // rank 0: adds to the start block
  virtual void begin_step(int64_t /*step*/) {}
  // Returns whether every op of this step is timed, until step_ran().
  virtual bool times_ops(int64_t /*step*/) { return false; }
  virtual void step_ran(int64_t /*step*/) {}  // after the engine's step, before the state's counters advance
  virtual void before_record() {}             // may be collective, like the next but one and what follows it
  virtual void measure(StepRecord&, const StepResult&) {}         // rank 0: its figures of the step
  virtual void end_step(const StepRecord*, const StepResult&) {}  // the record, which is written; nullptr: not rank 0
  virtual void between_steps(bool /*ends*/) {}                    // `ends`: this was the last step
  virtual void after_evaluation() {}
  virtual void end(EndInfo&) {}  // adds to the end block, whose order is that of RunReporter::finish

 protected:
  RunView& run_;
};

using RunObservers = std::vector<std::unique_ptr<RunObserver>>;
RunObservers observers_of(RunView&);

// One observer each; nullptr: the run, or this rank, has none.
using MakeObserver = std::unique_ptr<RunObserver>(RunView&);
MakeObserver observe_trust_ratios, observe_norms;                     // tensor_statistics.cpp
MakeObserver observe_trace, observe_comm, observe_module_flops;       // profiles.cpp
MakeObserver observe_times, observe_prediction, observe_utilization;  // step_times.cpp
MakeObserver observe_stages;
MakeObserver observe_memory, observe_device_work;  // device_use.cpp

}  // namespace gt
