// Profiles of a run: trace files of log.trace_steps, communication by log.comm, the module table of log.flops_step.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "kernels/core/hash/sha256.h"
#include "kernels/core/host.h"
#include "launch/engine/measure/module_flops.h"
#include "launch/observe/comm_log.h"
#include "launch/observe/predict.h"
#include "launch/observe/trace/trace_session.h"
#include "launch/ranks/run_file.h"
#include "launch/train/observers/run_observer.h"

namespace gt {
namespace {

class TraceObserver : public RunObserver {
 public:
  TraceObserver(RunView& run, const TraceWindow& window)
      : RunObserver(run), trace_(run.rank.mesh, window, run.config.log.trace_ranks == TraceRanks::kAll) {}
  void begin_step(int64_t step) override { trace_.begin_step(step); }
  void step_ran(int64_t step) override {
    const RunLoader::Step& data = run_.loader.step();
    if (trace_.records(step))
      trace_.end_step(step, run_.engine.executor(), run_.engine.phases(), data.ready, data.waited);
  }
  void between_steps(bool ends) override;
  void end(EndInfo& info) override {
    if (!timeline_.empty())
      info.rows.push_back({"timeline", timeline_ + "the last traced step in milliseconds: digit forward, letter "
                                                   "backward, capital weight gradients only, ~ waiting for a message, "
                                                   ". idle"});
  }

 private:
  TraceSession trace_;
  std::string timeline_;  // of the last traced step
};

// After the last traced step, or when the run ends. Like logs: write errors are reported, and training continues.
void TraceObserver::between_steps(bool ends) {
  const int64_t step = run_.state->step;
  if (!trace_.records(step) || (!ends && trace_.records(step + 1))) return;
  const std::vector<RankTrace> traces = trace_.gather();
  if (run_.log == nullptr || traces.empty()) return;
  const int64_t first = std::max(parse_trace_window(run_.config.log.trace_steps).first, run_.state.first_step());
  TraceInfo info;
  info.tokens = run_.config.train.micro_batch * run_.loader.step().length();
  info.stage_flops = stage_flops(run_.rank.options, run_.rank.mesh.shape().pp, info.tokens);
  info.other = {{"command", run_.rank.run.command},
                {"config_sha256", sha256_hex(config_json(run_.config))},
                {"clock", "host steady clock; on a GPU: when work was queued"},
                {"clocks", clock_text(traces)}};
  const std::string path = fmt::format("{}/trace-{}.json.gz", run_.config.run_dir(), first);
  try {
    write_gzip(path, trace_json(traces, info));
    run_.event(fmt::format("trace of steps {} to {}: {} (open it in ui.perfetto.dev)", first, step, path));
  } catch (const Error& e) { run_.warn(step, fmt::format("the trace was not written: {}", e.what())); }
  const int columns = terminal_width();
  timeline_ = executed_timeline(traces, columns > 0 ? std::clamp(columns - 25, 40, 160) : 80);
  run_.step_ended = now();
}

class CommObserver : public RunObserver {
 public:
  explicit CommObserver(RunView& run) : RunObserver(run), log_(run.rank.mesh) {}
  void begin_step(int64_t) override { log_.begin_step(); }
  void step_ran(int64_t) override { log_.end_step(); }
  void end(EndInfo& info) override {
    const std::vector<CommRow> rows = log_.rows();
    info.comm_json = comm_json(rows, log_.steps());
    info.rows.push_back({"communication", comm_table(rows, log_.steps(), run_.rank.mesh.shape().world())});
  }

 private:
  CommLog log_;
};

class ModuleFlopsObserver : public RunObserver {
 public:
  using RunObserver::RunObserver;
  bool times_ops(int64_t step) override {
    if (step != run_.config.log.flops_step) return false;
    timer_ = std::make_unique<ModuleTimer>();
    began_ = now();
    run_.ops.begin_timing(run_.engine.store(), *timer_);
    return true;
  }
  void step_ran(int64_t) override {
    if (timer_) run_.ops.end();
  }
  void before_record() override;

 private:
  std::unique_ptr<ModuleTimer> timer_;  // in the step of log.flops_step
  double began_ = 0;
};

// Writes the table to a file, and to standard output unless a path is configured.
void ModuleFlopsObserver::before_record() {
  if (!timer_) return;
  const LogConfig& c = run_.config.log;
  const double seconds = now() - began_;
  const int64_t step = run_.state->step, length = run_.loader.step().length();
  std::vector<ModuleCost> leaves =
      module_costs(run_.engine.spec(), run_.loader.global_tokens(), length, run_.engine.kept_blocks());
  timer_->share(run_.rank.mesh.world(), leaves);
  timer_.reset();
  if (run_.log == nullptr) return;
  const std::string table =
      flops_table(leaves, {.step = step,
                           .depth = static_cast<int>(c.flops_depth),
                           .top = static_cast<int>(c.flops_top),
                           .detailed = c.flops_detailed,
                           .recompute_factor = c.flops_recompute_factor,
                           .replicas = run_.config.parallel.tp * run_.config.parallel.dp,
                           .step_seconds = seconds,
                           .batch = fmt::format("{} sequences of {} tokens", run_.config.train.global_batch, length)});
  const bool named = !c.flops_file.empty();
  const std::string path = named ? c.flops_file : fmt::format("{}/flops-{}.txt", run_.config.run_dir(), step);
  try {
    if (!named) write_run_file(path, table);
    if (named && !(std::ofstream(path) << table << std::flush)) fail(Exit::kIo, path, ": cannot be written");
  } catch (const Error& e) { run_.warn(step, fmt::format("log.flops_step: the table was not written: {}", e.what())); }
  if (!named && !run_.rank.run.quiet) {
    run_.log->flush();
    fmt::print("{}", table);
    std::fflush(stdout);
  }
  run_.event(fmt::format("FLOPs by module: {}; this step synchronized after each op", path));
}

}  // namespace

std::unique_ptr<RunObserver> observe_trace(RunView& run) {
  const TraceWindow w = parse_trace_window(run.config.log.trace_steps);
  return w.end > w.first ? std::make_unique<TraceObserver>(run, w) : nullptr;
}
std::unique_ptr<RunObserver> observe_comm(RunView& run) {
  return run.config.log.comm ? std::make_unique<CommObserver>(run) : nullptr;
}
std::unique_ptr<RunObserver> observe_module_flops(RunView& run) {
  return run.config.log.flops_step > 0 ? std::make_unique<ModuleFlopsObserver>(run) : nullptr;
}

}  // namespace gt
