#include "launch/train/run_reporter.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "kernels/core/host.h"
#include "kernels/core/text.h"
#include "launch/observe/sinks/console.h"
#include "launch/observe/sinks/log_jsonl.h"
#include "launch/observe/sinks/progress.h"
#include "launch/observe/sinks/samples_sink.h"
#include "launch/observe/sinks/tensorboard_sink.h"
#include "launch/options/version.h"
#include "launch/train/next_commands.h"
#include "launch/train/vocabulary_note.h"
#include "model/families/family.h"

namespace gt {
namespace fs = std::filesystem;

void RunView::event(const std::string& text, bool warning) const {
  if (log) log->push(create_event(state->step, text, warning));
}

void RunView::warn(int64_t step, const std::string& text) const {
  if (log) log->warn(step, text);
}

// The order of the list is that of the calls. Traces compare clocks before log.comm counts; records of one step come in
// the order of the list.
RunObservers observers_of(RunView& run) {
  RunObservers out;
  for (MakeObserver* make :
       {observe_trust_ratios, observe_trace, observe_comm, observe_module_flops, observe_times, observe_prediction,
        observe_utilization, observe_memory, observe_stages, observe_norms, observe_device_work})
    if (auto made = make(run)) out.push_back(std::move(made));
  return out;
}

RunReporter::RunReporter(const RankContext& rank, Engine& engine, OpWatch& ops, const RunLoader& loader,
                         const RunState& state)
    : run_{.rank = rank,
           .config = rank.config,
           .engine = engine,
           .ops = ops,
           .loader = loader,
           .state = state,
           .medians = StepMedians(rank.is_rank0() ? rank.config.train.steps : 1)},
      loss_keys_(loss_keys(engine.spec().losses)),
      observers_(observers_of(run_)) {}

void RunReporter::start(const std::string& saves, const std::string& copies) {
  const RankContext& rank = run_.rank;
  if (!rank.is_rank0()) return;
  StartInfo info;
  Rows curves;
  log_ = std::make_unique<MetricsWriter>(make_sinks(curves));
  run_.log = log_.get();
  const MeshShape& mesh = rank.mesh.shape();
  info.command = rank.run.command;
  info.config_json = config_json(run_.config);
  info.run_dir = run_.config.run_dir();
  info.first_step = run_.state.first_step();
  info.total_steps = run_.config.train.steps;
  info.resumed_from = run_.state.resumed() ? run_.state->step : -1;
  info.eval_every = run_.config.train.eval_every;
  info.save_every = run_.config.checkpoint.save_steps();
  info.world = mesh.world();
  info.layout = stage_table(rank.options, mesh, rank.stage_plans);
  info.environment = rank.backend.device->describe(rank.device.index());
  info.version = fmt::format("{} ({})", program_version(), git_hash());
  info.rows = std::move(curves);
  info.rows = start_block(info, saves, copies);
  log_->start(info);
  if (run_.state.loaded()) warn_all(run_.state.loaded()->warnings);
}

std::vector<std::unique_ptr<Sink>> RunReporter::make_sinks(Rows& curves) {
  std::vector<std::unique_ptr<Sink>> sinks;
  const LogConfig& c = run_.config.log;
  ConsoleOptions console;
  console.every = c.every;
  console.bar = use_progress_bar(c.progress);
  console.quiet = run_.rank.run.quiet || c.level > LogLevel::kInfo;
  sinks.push_back(std::make_unique<ConsoleSink>(console));
  sinks.push_back(std::make_unique<JsonlSink>());
  if (c.csv) sinks.push_back(std::make_unique<CsvSink>());
  if (metrics_port_) sinks.push_back(std::move(metrics_port_));
  std::function<DeviceConditions()> conditions;
  if (run_.rank.backend.kind == DeviceKind::kCuda && run_.rank.backend.conditions != nullptr)
    conditions = [query = run_.rank.backend.conditions, index = run_.rank.device.index()] {
      return query(index, nullptr);
    };
  if (run_.rank.run.report_sink && (c.report || c.report_every > 0))
    sinks.push_back(run_.rank.run.report_sink(c.report_every));
  if (c.tensorboard) sinks.push_back(std::make_unique<TensorBoardSink>(c.every, conditions));
  // Samples are counted by steps, as in DeepSpeed; rolled-back steps do not count.
  const int64_t samples =
      run_.state->curriculum ? run_.state->curriculum->samples : run_.state->consumed_tokens / run_.config.model.seq;
  const CurveAxis axis{run_.state->step, samples, run_.config.train.global_batch};
  const bool times = c.timers || c.flops_step > 0;
  if (const std::string& to = c.samples_tensorboard; !to.empty())
    sinks.push_back(std::make_unique<SamplesSink>(
        "log.samples_tensorboard", std::make_unique<TensorBoardCurves>(add_curves(to, curves), samples + 1), axis,
        times));
  if (const std::string& to = c.samples_csv; !to.empty())
    sinks.push_back(std::make_unique<SamplesSink>(
        "log.samples_csv", csv_curves(add_curves(to, curves), samples + 1, run_.state->step == 0), axis, times));
  return sinks;
}

// Folder of the curves over samples. Curves with different x-axes need separate folders: a resumed curve drops points
// after its first x.
std::string RunReporter::add_curves(const std::string& given, Rows& curves) const {
  std::error_code ec;
  const bool same = fs::weakly_canonical(given, ec) == fs::weakly_canonical(run_.config.run_dir(), ec);
  const std::string folder = same ? given + "/samples" : given;
  curves.push_back(
      {"curves", folder + (same ? " (over samples; those over steps are in the run's folder)" : " (over samples)")});
  return folder;
}

// `info`: its rows are those of further curves.
Rows RunReporter::start_block(const StartInfo& info, const std::string& saves, const std::string& copies) {
  const RunDatasets& data = run_.loader.data();
  BannerFacts facts{run_.config,       run_.rank.options, run_.rank.stage_plans, *run_.rank.fit,
                    run_.rank.backend, *data.train,       data.valid.get()};
  facts.comm = run_.rank.groups.backend();
  facts.threads = run_.rank.options.threads;
  facts.resumed_from = info.resumed_from;
  facts.device = run_.rank.device.index();
  facts.transport = run_.rank.device.transport();
  facts.saves = saves;
  facts.copies = copies;
  if (run_.state.loaded()) facts.checkpoint = run_.state.loaded()->path;
  if (run_.state.loaded() && info.resumed_from < 0)
    facts.loaded = fmt::format("{} of {}", fmt::join(run_.config.checkpoint.load, ", "), facts.checkpoint);
  for (const auto& o : observers_) o->start(facts);
  facts.folders = info.rows;
  facts.tokenizer = tokenizer_rows(run_.config);
  facts.notes = run_.state.notes();
  facts.notes.insert(facts.notes.end(), run_.rank.run.loaded.notes.begin(), run_.rank.run.loaded.notes.end());
  if (const std::string note = vocabulary_note(run_.config); !note.empty()) facts.notes.push_back(note);
  return start_rows(facts);
}

void RunReporter::warn_all(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) warn(run_.state->step, text);
}

void RunReporter::restart_clock() { run_.step_ended = now(); }

void RunReporter::begin_step(int64_t step) {
  for (const auto& o : observers_) o->begin_step(step);
}

bool RunReporter::times_ops(int64_t step) {
  bool timed = false;
  for (const auto& o : observers_) timed |= o->times_ops(step);
  return timed;
}

void RunReporter::step_ran(int64_t step) {
  for (const auto& o : observers_) o->step_ran(step);
}

void RunReporter::end_step(const StepResult& r) {
  last_loss_ = r.loss;
  for (const auto& o : observers_) o->before_record();
  std::optional<StepRecord> rec;
  if (log_) log_->push(rec.emplace(record_of(r)));
  for (const auto& o : observers_) o->end_step(rec ? &*rec : nullptr, r);
}

void RunReporter::between_steps(bool ends) {
  for (const auto& o : observers_) o->between_steps(ends);
}

void RunReporter::after_evaluation() {
  for (const auto& o : observers_) o->after_evaluation();
}

LossParts RunReporter::loss_parts(std::span<const double> parts) const {
  LossParts out;
  for (size_t i = 0; i < loss_keys_.size(); ++i)
    out.add(loss_keys_[i].c_str(), i + 1 < parts.size() ? parts[i + 1] : kUnknown);
  return out;
}

// Also resets the mark from which the next step is measured.
StepRecord RunReporter::record_of(const StepResult& r) {
  const double end = now();
  const RunState& state = run_.state;
  StepRecord rec;
  rec.step_seconds = end - run_.step_ended;
  rec.tokens_per_second = static_cast<double>(run_.loader.global_tokens()) / rec.step_seconds;
  rec.step = state->step;
  rec.total_steps = run_.config.train.steps;
  rec.time = wall_seconds();
  rec.tokens = state->consumed_tokens;
  rec.samples = state->consumed_samples;
  rec.global_batch = run_.config.train.global_batch;
  rec.seq = run_.loader.step().length();
  rec.epoch = (state->consumed_samples - 1) / std::max<int64_t>(1, run_.loader.data().train->size());
  rec.loss = r.loss;
  rec.parts = loss_parts(std::span(r.parts).first(run_.engine.spec().losses.size()));
  rec.grad_norm = r.grad_norm;
  rec.clip_coef = r.clip;
  rec.lr = r.lr;
  if (r.momentum != kKeepBeta) rec.momentum = r.momentum;
  if (run_.engine.loss_scaler().options().dynamic || r.loss_scale != 1) rec.loss_scale = r.loss_scale;
  rec.skipped = state->skipped_steps;
  for (const auto& o : observers_) o->measure(rec, r);
  run_.step_ended = end;
  run_.medians.add(rec);
  return rec;
}

void RunReporter::evaluated(const MeanLoss& loss, double seconds) {
  EvalRecord rec;
  rec.step = run_.state->step;
  rec.time = wall_seconds();
  rec.tokens = run_.config.train.eval_steps * run_.config.train.global_batch * run_.config.model.seq;
  rec.loss = loss.sum();
  rec.parts = loss_parts(loss.parts);
  rec.seconds = seconds;
  if (log_) log_->push(rec);
}

void RunReporter::finish(const RunEnd& end) {
  EndInfo info;
  if (log_) add_progress(info, end);
  for (const auto& o : observers_) o->end(info);  // log.comm is collective
  if (!log_) return;
  info.rows = end_block(info, end);
  info.next = next_commands(run_.config, end.code, end.saved_step);
  log_->end(info);
}

void RunReporter::add_progress(EndInfo& info, const RunEnd& end) const {
  const RunState& state = run_.state;
  const StepMedians& medians = run_.medians;
  info.reason = end.done ? "finished" : "interrupted by a stop signal";
  if (end.code == Exit::kInterrupted)
    info.reason += ", everything is saved";
  else if (end.code != Exit::kOk)
    info.reason += ", but the last checkpoint could not be written";
  info.exit_code = static_cast<int>(end.code);
  info.step = state->step;
  info.tokens = state->consumed_tokens;
  info.seconds = state.elapsed_seconds();
  info.last_loss = last_loss_;
  info.best_loss = state->best_step >= 0 ? state->best_loss : kUnknown;
  info.median_tokens_per_second = medians.tokens_per_second();
  info.goodput = medians.seconds() / std::max(now() - run_.rank.started, 1e-9);
  info.median_mfu = run_.mfu_at_rate * info.median_tokens_per_second;
  info.rows.emplace_back("steps", fmt::format("{} of {}, {} tokens, {}; goodput {:.0f} % of this process's time",
                                              info.step, run_.config.train.steps, format_thousands(info.tokens),
                                              format_duration(info.seconds), 100 * info.goodput));
  if (medians.steps() > 0) {
    std::string best;
    if (state->best_step >= 0)
      best = fmt::format(", best of evaluation {:.4f} at step {}", state->best_loss, state->best_step);
    info.rows.emplace_back("loss", fmt::format("last {:.4f}{}", last_loss_, best));
    info.rows.emplace_back("medians", medians.text(info.median_mfu));
  }
  if (end.spikes_taken > 0)
    info.rows.push_back({"spikes", fmt::format("{} of {} steps had a loss or gradient norm far above the median; their "
                                               "updates were applied (--fault.spike_action skip skips them)",
                                               end.spikes_taken, state->step)});
}

// The rows of `info` in the order that people read them, then the files of the run.
Rows RunReporter::end_block(EndInfo info, const RunEnd& end) const {
  constexpr std::string_view kOrder[] = {"communication", "steps",       "loss",   "medians", "pipeline", "prediction",
                                         "memory",        "total FLOPs", "graphs", "spikes",  "time",     "timeline"};
  const auto at = [&](const auto& row) { return std::find(std::begin(kOrder), std::end(kOrder), row.first); };
  Rows rows = std::move(info.rows);
  std::stable_sort(rows.begin(), rows.end(), [&](const auto& a, const auto& b) { return at(a) < at(b); });
  rows.push_back({"logs", run_.config.run_dir() + "/log.jsonl"});
  if (run_.config.log.report || run_.config.log.report_every > 0)
    rows.push_back({"report", run_.config.run_dir() + "/report.html"});
  rows.push_back({"checkpoint", end.saved_step >= 0
                                    ? fmt::format("{}/step-{:09}", run_.config.checkpoint_dir(), end.saved_step)
                                    : "none"});
  rows.insert(rows.end(), end.range_test.begin(), end.range_test.end());
  return rows;
}

void RunReporter::require_written() const {
  const std::string unwritten = log_ ? log_->unwritten() : "";
  GT_REQUIRE(unwritten.empty(), Exit::kIo, "finished at step ", run_.state->step,
             ", but not all of its logs are written: ", unwritten);
}

}  // namespace gt
