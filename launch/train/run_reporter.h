// What a run reports: the start block, a record of each step, tables and traces that the config asks for, the end
// block. Every rank calls it; rank 0 writes.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/engine/op_watch.h"
#include "launch/observe/comm_log.h"
#include "launch/observe/data_wait.h"
#include "launch/observe/metrics.h"
#include "launch/observe/param_stats.h"
#include "launch/observe/step_medians.h"
#include "launch/observe/trace/trace_session.h"
#include "launch/observe/trust_ratio_log.h"
#include "launch/observe/utilization.h"
#include "launch/train/run_state.h"
#include "launch/train/training_data.h"

namespace gt {

// How a run ends, as far as the reporter does not see it.
struct RunEnd {
  Exit code = Exit::kOk;
  bool done = false;         // every step was made
  int64_t saved_step = -1;   // newest checkpoint; -1: none
  int64_t spikes_taken = 0;  // StepGuard::spikes_taken
  Rows range_test;           // of a range test
};

class RunReporter {
 public:
  // All outlive this object.
  RunReporter(const RankContext&, Engine&, OpWatch&, const RunLoader&, const RunState&);

  // Opens the logs and writes the start block. `saves`: RunSaver::describe; "": the run saves nothing.
  void start(const std::string& saves);
  MetricsWriter* log() const { return log_.get(); }           // nullptr before start(), and on every rank but 0
  void event(const std::string& text, bool warning = false);  // at the state's step
  void warn(int64_t step, const std::string& text);
  void warn_all(const std::vector<std::string>& texts);  // at the state's step
  void restart_clock();                                  // the time of the next step counts from here

  void begin_step(int64_t step);
  // Whether this is the step of log.flops_step: then every op is timed until step_ran().
  bool times_ops(int64_t step);
  // The engine's step is over, the state's counters are as before it.
  void step_ran(int64_t step);
  // Collective where trust ratios or FLOPs are reported: the record of the step, by the state's new counters.
  void end_step(const StepResult&);
  void evaluated(const MeanLoss&, double seconds);
  void report_memory();         // collective, once, when everything that takes memory has run
  void write_trace(bool ends);  // collective over the traced ranks; after the last traced step, or when the run ends
  void finish(const RunEnd&);   // collective
  // Throws kIo where not all records are written; after finish().
  void require_written() const;

 private:
  std::vector<std::unique_ptr<Sink>> make_sinks(Rows& curves);
  std::string add_curves(const std::string& wanted, Rows& curves) const;
  Rows start_block(const StartInfo&, const std::string& saves) const;
  StepRecord record_of(const StepResult&);
  void add_utilization(StepRecord&, const StepResult&);
  void add_times(StepRecord&, const StepResult&);
  void report_trust_ratios();
  bool measures_parameters(int64_t step) const;
  void report_norms(const StepResult&);
  void report_stages();
  std::string slowest_text() const;
  Rows medians() const;
  void report_flops();
  void report_eager_work();
  void report_attention();
  void report_times_and_memory(const StepRecord&);
  Rows end_block(const RunEnd&) const;
  const RankContext& rank_;
  const Config& config_;
  Engine& engine_;
  OpWatch& ops_;
  const RunLoader& loader_;
  const RunState& state_;
  std::unique_ptr<MetricsWriter> log_;
  std::unique_ptr<CommLog> comm_log_;    // nullptr: log.comm is off
  std::unique_ptr<TraceSession> trace_;  // nullptr: no step is traced
  std::string timeline_;                 // of the last traced step
  std::unique_ptr<TrustRatioLog> trust_ratios_;
  std::unique_ptr<ModuleTimer> module_timer_;  // in the step of log.flops_step
  double timing_began_ = 0;
  double peak_flops_ = kUnknown, peak_fp8_ = kUnknown;  // of the device
  double mfu_at_rate_ = kUnknown;                       // MFU of a token a second
  std::optional<PeakRates> ceilings_;
  double predicted_bubble_ = kUnknown;
  StepMedians medians_;
  double executed_flops_ = 0;                // of this process's steps
  std::unique_ptr<ParamStats> param_stats_;  // nullptr: neither log.norms_every nor log.histograms_every
  std::optional<RankMemory> largest_;        // the rank that needs most
  DataWaitWatch data_wait_;
  StepBreakdown breakdown_;
  double step_ended_ = 0, last_loss_ = kUnknown;
  bool memory_reported_ = false, eager_reported_ = false;
};

}  // namespace gt
