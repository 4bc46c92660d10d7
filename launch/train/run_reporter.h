// Output of a run: start block, one record per step, configured tables and traces, end block. Called by every rank;
// rank 0 writes.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/engine/measure/op_watch.h"
#include "launch/observe/comm_log.h"
#include "launch/observe/data_wait.h"
#include "launch/observe/metrics.h"
#include "launch/observe/param_stats.h"
#include "launch/observe/sinks/prometheus_sink.h"
#include "launch/observe/step_medians.h"
#include "launch/observe/step_prediction.h"
#include "launch/observe/trace/trace_session.h"
#include "launch/observe/trust_ratio_log.h"
#include "launch/observe/utilization.h"
#include "launch/train/run_state.h"
#include "launch/train/training_data.h"

namespace gt {

// Outcome of a run that the reporter does not observe itself.
struct RunEnd {
  Exit code = Exit::kOk;
  bool done = false;         // all steps completed
  int64_t saved_step = -1;   // newest checkpoint; -1: none
  int64_t spikes_taken = 0;  // StepGuard::spikes_taken
  Rows range_test;           // of a learning-rate range test
};

class RunReporter {
 public:
  // All must outlive this object.
  RunReporter(const RankContext&, Engine&, OpWatch&, const RunLoader&, const RunState&);

  // Opens log.prometheus's port, before anything is loaded. Throws kUsage. No effect on ranks but 0.
  void open_port() {
    if (rank_.is_rank0()) metrics_port_ = open_prometheus(config_.log.prometheus);
  }
  // Opens the logs and writes the start block. `saves`: RunSaver::describe; "": the run saves nothing. `copies`:
  // RunCopies::describe.
  void start(const std::string& saves, const std::string& copies);
  MetricsWriter* log() const { return log_.get(); }           // nullptr before start(), and on every rank but 0
  void event(const std::string& text, bool warning = false);  // at the state's step
  void warn(int64_t step, const std::string& text);
  void warn_all(const std::vector<std::string>& texts);  // at the state's step
  void restart_clock();                                  // restarts the time measurement of the next step

  void begin_step(int64_t step);
  // Returns whether this is the step of log.flops_step. If so, every op is timed until step_ran().
  bool times_ops(int64_t step);
  // Call after the engine's step, before the state's counters advance.
  void step_ran(int64_t step);
  // Writes the record of the step, using the state's new counters. Collective if trust ratios or FLOPs are reported.
  void end_step(const StepResult&);
  void evaluated(const MeanLoss&, double seconds);
  void report_memory();         // collective, once, when everything that takes memory has run
  void write_trace(bool ends);  // collective over the traced ranks; after the last traced step, or when the run ends
  void finish(const RunEnd&);   // collective
  // Throws kIo if records are missing from a log; call after finish().
  void require_written() const;

 private:
  std::vector<std::unique_ptr<Sink>> make_sinks(Rows& curves);
  std::string add_curves(const std::string& given, Rows& curves) const;
  Rows start_block(const StartInfo&, const std::string& saves, const std::string& copies) const;
  StepRecord record_of(const StepResult&);
  LossParts loss_parts(std::span<const double> parts) const;  // by index of ModelSpec::losses
  void add_utilization(StepRecord&, const StepResult&);
  void add_times(StepRecord&, const StepResult&);
  static void add_parts(StepRecord&, const StepParts&);
  void report_trust_ratios();
  bool measures_parameters(int64_t step) const;
  void report_norms(const StepResult&);
  void report_stages();
  std::string slowest_text() const;
  void predict();
  void remember_prediction() const;
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
  std::vector<std::string> loss_keys_;  // of the model's losses besides that of tokens, then of other families'
  std::unique_ptr<PrometheusSink> metrics_port_;  // until the log takes it
  std::unique_ptr<MetricsWriter> log_;
  std::unique_ptr<CommLog> comm_log_;    // nullptr: log.comm is off
  std::unique_ptr<TraceSession> trace_;  // nullptr: no step is traced
  std::string timeline_;                 // timeline of the last traced step
  std::unique_ptr<TrustRatioLog> trust_ratios_;
  std::unique_ptr<ModuleTimer> module_timer_;  // in the step of log.flops_step
  double timing_began_ = 0;
  double peak_flops_ = kUnknown, peak_fp8_ = kUnknown;  // of the device
  double mfu_at_rate_ = kUnknown;                       // MFU at one token per second
  StepFlopsCache flops_;
  std::optional<PeakRates> ceilings_;
  double predicted_bubble_ = kUnknown;
  std::optional<StepPrediction> prediction_;  // of machines that were calibrated
  std::string faster_;                        // advice to its line in the start block
  MeasuredOn times_on_;                       // conditions of its times
  StepMedians medians_;
  double executed_flops_ = 0;                // of this process's steps
  std::unique_ptr<ParamStats> param_stats_;  // nullptr: neither log.norms_every nor log.histograms_every
  std::optional<RankMemory> largest_;        // the rank that needs most
  DataWaitWatch data_wait_;
  std::optional<StepBreakdown> breakdown_;  // of the rank that logs
  double step_ended_ = 0, last_loss_ = kUnknown;
  bool memory_reported_ = false, eager_reported_ = false;
};

}  // namespace gt
