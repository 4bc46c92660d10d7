// Output of a run: start block, one record per step, end block, and what the observers of the run report. Called by
// every rank; rank 0 writes.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "launch/observe/sinks/prometheus_sink.h"
#include "launch/train/observers/run_observer.h"

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
    if (run_.rank.is_rank0()) metrics_port_ = open_prometheus(run_.config.log.prometheus);
  }
  // Opens the logs and writes the start block. `saves`: RunSaver::describe; "": the run saves nothing. `copies`:
  // RunCopies::describe.
  void start(const std::string& saves, const std::string& copies);
  MetricsWriter* log() const { return log_.get(); }  // nullptr before start(), and on every rank but 0
  void event(const std::string& text, bool warning = false) { run_.event(text, warning); }  // at the state's step
  void warn(int64_t step, const std::string& text) { run_.warn(step, text); }
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
  void between_steps(bool ends);  // collective over the traced ranks; `ends`: the run ends
  void after_evaluation();        // collective, once, when everything that takes memory has run
  void finish(const RunEnd&);     // collective
  // Throws kIo if records are missing from a log; call after finish().
  void require_written() const;

 private:
  std::vector<std::unique_ptr<Sink>> make_sinks(Rows& curves);
  std::string add_curves(const std::string& given, Rows& curves) const;
  Rows start_block(const StartInfo&, const std::string& saves, const std::string& copies);
  StepRecord record_of(const StepResult&);
  LossParts loss_parts(std::span<const double> parts) const;  // by index of ModelSpec::losses
  void add_progress(EndInfo&, const RunEnd&) const;
  Rows end_block(EndInfo, const RunEnd&) const;

  RunView run_;
  std::vector<std::string> loss_keys_;  // of the model's losses besides that of tokens, then of other families'
  std::unique_ptr<PrometheusSink> metrics_port_;  // until the log takes it
  RunObservers observers_;
  std::unique_ptr<MetricsWriter> log_;
  double last_loss_ = kUnknown;
};

}  // namespace gt
