#include "launch/train/run_reporter.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "kernels/core/hash/sha256.h"
#include "kernels/core/host.h"
#include "kernels/core/text.h"
#include "launch/engine/measure/module_flops.h"
#include "launch/observe/banner.h"
#include "launch/observe/predict.h"
#include "launch/observe/rank_memory.h"
#include "launch/observe/sinks/console.h"
#include "launch/observe/sinks/log_jsonl.h"
#include "launch/observe/sinks/progress.h"
#include "launch/observe/sinks/samples_sink.h"
#include "launch/observe/sinks/tensorboard_sink.h"
#include "launch/options/version.h"
#include "launch/ranks/run_file.h"
#include "launch/train/next_commands.h"
#include "launch/train/vocabulary_note.h"
#include "model/families/family.h"

namespace gt {
namespace fs = std::filesystem;
namespace {

int64_t resident_bytes() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  return int64_t{u.ru_maxrss} * 1024;
}

std::string process_text() { return "process " + format_bytes(static_cast<double>(resident_bytes())); }

}  // namespace

RunReporter::RunReporter(const RankContext& rank, Engine& engine, OpWatch& ops, const RunLoader& loader,
                         const RunState& state)
    : rank_(rank),
      config_(rank.config),
      engine_(engine),
      ops_(ops),
      loader_(loader),
      state_(state),
      loss_keys_(loss_keys(engine.spec().losses)),
      medians_(rank.is_rank0() ? rank.config.train.steps : 1) {
  const LogConfig& c = config_.log;
  if (c.norms_every > 0 || c.histograms_every > 0)
    param_stats_ = std::make_unique<ParamStats>(engine, rank.backend, rank.stream);
  if (config_.log.comm) comm_log_ = std::make_unique<CommLog>(rank.mesh);
  if (const TraceWindow w = parse_trace_window(config_.log.trace_steps); w.end > w.first)
    trace_ = std::make_unique<TraceSession>(rank.mesh, w, config_.log.trace_ranks == TraceRanks::kAll);
}

void RunReporter::start(const std::string& saves, const std::string& copies) {
  if (!rank_.is_rank0()) return;
  StartInfo info;
  Rows curves;
  log_ = std::make_unique<MetricsWriter>(make_sinks(curves));
  const MeshShape& mesh = rank_.mesh.shape();
  if (mesh.pp > 1) predicted_bubble_ = predict_pipeline(rank_.options, mesh.pp).bubble;
  predict();
  breakdown_.emplace(is_asynchronous(*rank_.backend.device));
  info.command = rank_.run.command;
  info.config_json = config_json(config_);
  info.run_dir = config_.run_dir();
  info.first_step = state_.first_step();
  info.total_steps = config_.train.steps;
  info.resumed_from = state_.resumed() ? state_->step : -1;
  info.eval_every = config_.train.eval_every;
  info.save_every = config_.checkpoint.save_steps();
  info.world = mesh.world();
  info.layout = stage_table(rank_.options, mesh, rank_.stage_plans);
  info.environment = rank_.backend.device->describe(rank_.device.index());
  peak_flops_ = peak_bf16_flops(info.environment);
  peak_fp8_ = peak_fp8_flops(info.environment);
  ceilings_ = load_ceilings(info.environment, rank_.options.precision.linear());
  info.version = fmt::format("{} ({})", program_version(), git_hash());
  info.rows = std::move(curves);
  info.rows = start_block(info, saves, copies);
  log_->start(info);
  if (state_.loaded()) warn_all(state_.loaded()->warnings);
}

// Predicts the step where `plan --calibrate` has measured this machine and, for a job of several, `bench comm` the
// network.
void RunReporter::predict() {
  const int ranks = rank_.groups.local_size(), machines = (rank_.mesh.shape().world() + ranks - 1) / ranks;
  if (rank_.backend.kind != DeviceKind::kCpu) return;
  const CoreShare share = core_share(ranks, rank_.options.threads);
  times_on_ = {rank_.backend.device->describe(rank_.device.index()), rank_.options.precision.linear(), share.threads,
               share.together()};
  const auto times = MeasuredTimes::load(times_on_);
  if (!times) return;
  const auto predicted = [&](const EngineOptions& o) {
    return predict_step(o, rank_.mesh.shape(), rank_.stage_plans, *times, rank_.mesh.world().backend(), share,
                        machines);
  };
  const StepPrediction p = predicted(rank_.options);
  if (!std::isfinite(p.seconds())) return;
  prediction_ = p;
  if (rank_.options.schedule == "1f1b" && machines > 1)
    faster_ = deeper_pipeline(rank_.options, p.seconds(), predicted);
}

std::vector<std::unique_ptr<Sink>> RunReporter::make_sinks(Rows& curves) {
  std::vector<std::unique_ptr<Sink>> sinks;
  const LogConfig& c = config_.log;
  ConsoleOptions console;
  console.every = c.every;
  console.bar = use_progress_bar(c.progress);
  console.quiet = rank_.run.quiet || c.level > LogLevel::kInfo;
  sinks.push_back(std::make_unique<ConsoleSink>(console));
  sinks.push_back(std::make_unique<JsonlSink>());
  if (c.csv) sinks.push_back(std::make_unique<CsvSink>());
  if (metrics_port_) sinks.push_back(std::move(metrics_port_));
  std::function<DeviceConditions()> conditions;
  if (rank_.backend.kind == DeviceKind::kCuda && rank_.backend.conditions != nullptr)
    conditions = [query = rank_.backend.conditions, index = rank_.device.index()] { return query(index, nullptr); };
  if (rank_.run.report_sink && (c.report || c.report_every > 0)) sinks.push_back(rank_.run.report_sink(c.report_every));
  if (c.tensorboard) sinks.push_back(std::make_unique<TensorBoardSink>(c.every, conditions));
  // Samples are counted by steps, as in DeepSpeed; rolled-back steps do not count.
  const int64_t samples =
      state_->curriculum ? state_->curriculum->samples : state_->consumed_tokens / config_.model.seq;
  const CurveAxis axis{state_->step, samples, config_.train.global_batch};
  const bool times = c.timers || c.flops_step > 0;
  if (const std::string& to = c.samples_tensorboard; !to.empty())
    sinks.push_back(std::make_unique<SamplesSink>(
        "log.samples_tensorboard", std::make_unique<TensorBoardCurves>(add_curves(to, curves), samples + 1), axis,
        times));
  if (const std::string& to = c.samples_csv; !to.empty())
    sinks.push_back(std::make_unique<SamplesSink>(
        "log.samples_csv", csv_curves(add_curves(to, curves), samples + 1, state_->step == 0), axis, times));
  return sinks;
}

// Folder of the curves over samples. Curves with different x-axes need separate folders: a resumed curve drops points
// after its first x.
std::string RunReporter::add_curves(const std::string& given, Rows& curves) const {
  std::error_code ec;
  const bool same = fs::weakly_canonical(given, ec) == fs::weakly_canonical(config_.run_dir(), ec);
  const std::string folder = same ? given + "/samples" : given;
  curves.push_back(
      {"curves", folder + (same ? " (over samples; those over steps are in the run's folder)" : " (over samples)")});
  return folder;
}

// `info`: its rows are those of further curves.
Rows RunReporter::start_block(const StartInfo& info, const std::string& saves, const std::string& copies) const {
  const RunDatasets& data = loader_.data();
  BannerFacts facts{config_,       rank_.options, rank_.stage_plans, *rank_.fit,
                    rank_.backend, *data.train,   data.valid.get()};
  facts.comm = rank_.groups.backend();
  facts.threads = rank_.options.threads;
  facts.resumed_from = info.resumed_from;
  facts.device = rank_.device.index();
  facts.transport = rank_.device.transport();
  facts.mfu = mfu_line(peak_flops_, ceilings_);
  facts.saves = saves;
  facts.copies = copies;
  if (state_.loaded()) facts.checkpoint = state_.loaded()->path;
  if (state_.loaded() && info.resumed_from < 0)
    facts.loaded = fmt::format("{} of {}", fmt::join(config_.checkpoint.load, ", "), facts.checkpoint);
  if (prediction_) facts.prediction = start_text(*prediction_) + faster_;
  facts.folders = info.rows;
  facts.tokenizer = tokenizer_rows(config_);
  facts.notes = state_.notes();
  facts.notes.insert(facts.notes.end(), rank_.run.loaded.notes.begin(), rank_.run.loaded.notes.end());
  if (const std::string note = vocabulary_note(config_); !note.empty()) facts.notes.push_back(note);
  return start_rows(facts);
}

void RunReporter::event(const std::string& text, bool warning) {
  if (log_) log_->push(create_event(state_->step, text, warning));
}

void RunReporter::warn(int64_t step, const std::string& text) {
  if (log_) log_->warn(step, text);
}

void RunReporter::warn_all(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) warn(state_->step, text);
}

void RunReporter::restart_clock() { step_ended_ = now(); }

void RunReporter::begin_step(int64_t step) {
  if (trace_) trace_->begin_step(step);
  if (comm_log_) comm_log_->begin_step();
  if (!measures_parameters(step)) return;
  const double begin = now();
  param_stats_->before_step();
  step_ended_ += now() - begin;  // no part of the step
}

bool RunReporter::times_ops(int64_t step) {
  if (step != config_.log.flops_step) return false;
  module_timer_ = std::make_unique<ModuleTimer>();
  timing_began_ = now();
  ops_.begin_timing(engine_.store(), *module_timer_);
  return true;
}

void RunReporter::step_ran(int64_t step) {
  if (module_timer_) ops_.end();
  if (comm_log_) comm_log_->end_step();
  if (trace_ && trace_->records(step))
    trace_->end_step(step, engine_.executor(), engine_.phases(), loader_.step().ready, loader_.step().waited);
}

void RunReporter::end_step(const StepResult& r) {
  last_loss_ = r.loss;
  report_trust_ratios();
  report_flops();
  if (log_) {
    const StepRecord rec = record_of(r);
    log_->push(rec);
    if (rec.step % config_.log.every == 0) report_times_and_memory(rec);
    if (config_.log.report_every > 0 && rec.step % config_.log.report_every == 0) report_stages();
  }
  report_norms(r);
  if (!log_) return;
  report_eager_work();
  report_attention();
}

LossParts RunReporter::loss_parts(std::span<const double> parts) const {
  LossParts out;
  for (size_t i = 0; i < loss_keys_.size(); ++i)
    out.add(loss_keys_[i].c_str(), i + 1 < parts.size() ? parts[i + 1] : kUnknown);
  return out;
}

// Also resets the marks from which the next step is measured.
StepRecord RunReporter::record_of(const StepResult& r) {
  const double end = now();
  StepRecord rec;
  rec.step_seconds = end - step_ended_;
  rec.tokens_per_second = static_cast<double>(loader_.global_tokens()) / rec.step_seconds;
  rec.step = state_->step;
  rec.total_steps = config_.train.steps;
  rec.time = wall_seconds();
  rec.tokens = state_->consumed_tokens;
  rec.samples = state_->consumed_samples;
  rec.global_batch = config_.train.global_batch;
  rec.seq = loader_.step().length();
  rec.epoch = (state_->consumed_samples - 1) / std::max<int64_t>(1, loader_.data().train->size());
  rec.loss = r.loss;
  rec.parts = loss_parts(std::span(r.parts).first(engine_.spec().losses.size()));
  rec.grad_norm = r.grad_norm;
  rec.clip_coef = r.clip;
  rec.lr = r.lr;
  if (r.momentum != kKeepBeta) rec.momentum = r.momentum;
  if (engine_.loss_scaler().options().dynamic || r.loss_scale != 1) rec.loss_scale = r.loss_scale;
  rec.skipped = state_->skipped_steps;
  if (prediction_ && rec.seq == config_.model.seq) rec.step_predicted = prediction_->seconds();
  add_utilization(rec, r);
  add_times(rec, r);
  if (breakdown_) add_parts(rec, breakdown_->add(rec.step, r.times, rec.step_seconds));
  step_ended_ = end;
  medians_.add(rec);
  return rec;
}

void RunReporter::add_utilization(StepRecord& rec, const StepResult& r) {
  const MeshShape& mesh = rank_.mesh.shape();
  const StepFlops& flops = flops_.of(rank_.options, mesh.pp, loader_.global_tokens(), rec.seq, r.blocks);
  const double devices = static_cast<double>(mesh.world()) / rank_.device.sharers();
  const double seconds = rec.step_seconds;
  rec.tflops_per_device = flops.causal / seconds / devices * 1e-12;
  rec.mfu = flops.causal / (seconds * devices * peak_flops_);
  rec.mfu_full = flops.full / (seconds * devices * peak_flops_);
  rec.hfu = flops.hardware / (seconds * devices * peak_flops_);
  if (rank_.options.precision.fp8 != Fp8Recipe::kOff) rec.mfu_fp8 = flops.causal / (seconds * devices * peak_fp8_);
  if (ceilings_) rec.of_ceiling = flops.causal / (seconds * devices * ceilings_->gemm);
  executed_flops_ += flops.hardware;
  mfu_at_rate_ = rec.mfu / rec.tokens_per_second;
}

// Adds the time breakdown of the step: fractions, bubbles, waits, peaks.
void RunReporter::add_times(StepRecord& rec, const StepResult& r) {
  const bool asynchronous = is_asynchronous(*rank_.backend.device);
  const double seconds = rec.step_seconds, waited = loader_.step().waited;
  if (medians_.steps() > (asynchronous ? 3 : 1)) rec.bubble = std::max(0.0, 1 - r.times.mean_busy() / seconds);
  if (rank_.mesh.shape().world() > 1 && !asynchronous)
    rec.exposed_comm = std::min(1.0, r.times.mean_exposed() / seconds);
  if (rank_.mesh.shape().pp > 1) {
    rec.pipeline_bubble = r.times.pipeline_bubble();
    rec.bubble_predicted = predicted_bubble_;
    double sum = 0, most = 0;
    for (int k = 0; k < r.times.stages(); ++k) {
      sum += r.times.busy(k);
      if (r.times.busy(k) > most) most = r.times.busy(k), rec.slowest_stage = k;
    }
    if (sum > 0) rec.stage_spread = most * r.times.stages() / sum - 1;
    if (rank_.mesh.shape().world() == rank_.mesh.shape().pp) rec.slowest_rank = rec.slowest_stage;
  }
  rec.data_wait = waited / seconds;
  if (config_.data.train.front().path != "mock")
    if (const auto warning = data_wait_.step(waited, seconds)) warn(rec.step, *warning);
  rec.peak_bytes = resident_bytes();
  rec.longest = r.times.longest();
}

void RunReporter::add_parts(StepRecord& rec, const StepParts& parts) {
  if (parts.step < 0 || parts.step >= rec.step) return;  // a rollback has taken that step back
  rec.timers_step = parts.step;
  rec.timers_seconds = parts.seconds;
  rec.timers = StepTimes(parts.times).mean();
}

bool RunReporter::measures_parameters(int64_t step) const {
  const auto due = [&](int64_t every) { return every > 0 && step % every == 0; };
  return due(config_.log.norms_every) || due(config_.log.histograms_every);
}

// Gradient norms by FSDP unit, norms of parameters and update, histograms.
void RunReporter::report_norms(const StepResult& r) {
  const int64_t step = state_->step, every = config_.log.norms_every, bins = config_.log.histograms_every;
  if (!measures_parameters(step)) return;
  const double begin = now();
  const ParamStats::Summary s = param_stats_->after_step(step, bins > 0 && step % bins == 0, 1 / r.loss_scale);
  if (log_ && every > 0 && step % every == 0) {
    const std::span<const double> squares = engine_.unit_norm_squares();
    const std::vector<UnitEntry>& units = engine_.spec().units;
    for (size_t u = 0; u < units.size(); ++u)
      log_->push(make_scalar(step, "train/grad_norm/" + units[u].name, std::sqrt(squares[u]) / r.loss_scale));
    log_->push(make_scalar(step, "train/param_norm", s.param_norm));
    log_->push(make_scalar(step, "train/update_ratio", s.update_norm / s.param_norm));
  }
  if (log_)
    for (const HistogramRecord& h : s.histograms) log_->push(h);
  if (log_ && !s.histograms.empty()) log_->push(make_scalar(step, "hist/nonfinite", s.nonfinite));
  step_ended_ += now() - begin;  // no part of a step
}

void RunReporter::report_stages() {
  double seconds = kUnknown;
  std::vector<Timers> means = breakdown_->means(seconds);
  if (means.empty()) return;
  log_->push(StagesRecord{.step = state_->step,
                          .time = wall_seconds(),
                          .step_seconds = seconds,
                          .stages = std::make_shared<const std::vector<Timers>>(std::move(means))});
}

// Every rank has the ratios of its stage, rank 0 logs them all.
void RunReporter::report_trust_ratios() {
  if (config_.log.lamb_every == 0 || state_->step % config_.log.lamb_every != 0) return;
  const std::vector<TrustRatio> mine = engine_.optimizer().trust_ratios(rank_.stream);
  if (!trust_ratios_) trust_ratios_ = std::make_unique<TrustRatioLog>(mine, rank_.mesh.world());
  for (const TrustRatio& r : trust_ratios_->gather(mine))
    if (log_) log_->push(make_scalar(state_->step, "train/lamb_coeff/" + r.tensor, static_cast<double>(r.ratio)));
}

// Writes the table of log.flops_step to a file, and to standard output unless a path is configured.
void RunReporter::report_flops() {
  if (!module_timer_) return;
  const LogConfig& c = config_.log;
  const double seconds = now() - timing_began_;
  const int64_t step = state_->step, length = loader_.step().length();
  std::vector<ModuleCost> leaves = module_costs(engine_.spec(), loader_.global_tokens(), length, engine_.kept_blocks());
  module_timer_->share(rank_.mesh.world(), leaves);
  module_timer_.reset();
  if (!log_) return;
  const std::string table =
      flops_table(leaves, {.step = step,
                           .depth = static_cast<int>(c.flops_depth),
                           .top = static_cast<int>(c.flops_top),
                           .detailed = c.flops_detailed,
                           .recompute_factor = c.flops_recompute_factor,
                           .replicas = config_.parallel.tp * config_.parallel.dp,
                           .step_seconds = seconds,
                           .batch = fmt::format("{} sequences of {} tokens", config_.train.global_batch, length)});
  const bool named = !c.flops_file.empty();
  const std::string path = named ? c.flops_file : fmt::format("{}/flops-{}.txt", config_.run_dir(), step);
  try {
    if (!named) write_run_file(path, table);
    if (named && !(std::ofstream(path) << table << std::flush)) fail(Exit::kIo, path, ": cannot be written");
  } catch (const Error& e) { warn(step, fmt::format("log.flops_step: the table was not written: {}", e.what())); }
  if (!named && !rank_.run.quiet) {
    log_->flush();
    fmt::print("{}", table);
    std::fflush(stdout);
  }
  event(fmt::format("FLOPs by module: {}; this step synchronized after each op", path));
}

// Reports once: work whose calls change between steps costs speed only.
void RunReporter::report_eager_work() {
  if (eager_reported_ || !rank_.backend.replays) return;
  const ReplayCounts c = engine_.replays();
  if (c.eager == 0) return;
  eager_reported_ = true;
  event(fmt::format("graphs: work was launched op by op ({}); counted at the end of the run", c.why));
}

// Reports the attention kernels selected since the last step: in the first step, and after a new shape.
void RunReporter::report_attention() {
  if (rank_.backend.take_attention_log == nullptr) return;
  std::istringstream lines(rank_.backend.take_attention_log());
  for (std::string line; std::getline(lines, line);) event(line);
}

void RunReporter::report_times_and_memory(const StepRecord& rec) {
  if (config_.log.timers && rec.timers_step >= 0) {
    std::string text = fmt::format("time of step {}", rec.timers_step);
    for (size_t t = 0; t < rec.timers.size(); ++t)
      if (kTimerNames[t] != nullptr && rec.timers[t] != 0)
        text += fmt::format("  {} {:.1f}", kTimerNames[t], 1e3 * rec.timers[t]);
    event(text + fmt::format("  of {:.1f} ms", 1e3 * rec.timers_seconds));
  }
  if (config_.log.memory)
    event(fmt::format("memory of rank 0: {} | {}", memory_line(engine_.measured_plan().memory), process_text()));
}

void RunReporter::evaluated(const MeanLoss& loss, double seconds) {
  EvalRecord rec;
  rec.step = state_->step;
  rec.time = wall_seconds();
  rec.tokens = config_.train.eval_steps * config_.train.global_batch * config_.model.seq;
  rec.loss = loss.sum();
  rec.parts = loss_parts(loss.parts);
  rec.seconds = seconds;
  if (log_) log_->push(rec);
}

// After two steps, and an evaluation if there are any.
void RunReporter::report_memory() {
  const int64_t every = config_.train.eval_every, steps = state_->step - state_.first_step() + 1;
  const bool last = state_->step >= config_.train.steps;
  if (memory_reported_ || steps < 2 || (every > 0 && steps < every && !last)) return;
  memory_reported_ = true;
  const std::vector<RankMemory> all = gather_memory(engine_, rank_.plan.memory, resident_bytes());
  if (!log_) return;
  largest_ = *std::max_element(all.begin(), all.end(), [](const RankMemory& a, const RankMemory& b) {
    return total(a.measured) < total(b.measured);
  });
  log_->push(MemoryRecord{.step = state_->step,
                          .time = wall_seconds(),
                          .ranks = std::make_shared<const std::vector<RankMemory>>(worth_logging(all))});
  event(fmt::format("memory of rank 0: planned {} | measured {} | {}", memory_line(rank_.plan.memory),
                    memory_line(engine_.measured_plan().memory), process_text()));
}

// Like logs: write errors are reported, and training continues.
void RunReporter::write_trace(bool ends) {
  const int64_t step = state_->step;
  if (!trace_ || !trace_->records(step) || (!ends && trace_->records(step + 1))) return;
  const std::vector<RankTrace> traces = trace_->gather();
  if (!log_ || traces.empty()) return;
  const int64_t first = std::max(parse_trace_window(config_.log.trace_steps).first, state_.first_step());
  TraceInfo info;
  info.tokens = config_.train.micro_batch * loader_.step().length();
  info.stage_flops = stage_flops(rank_.options, rank_.mesh.shape().pp, info.tokens);
  info.other = {{"command", rank_.run.command},
                {"config_sha256", sha256_hex(config_json(config_))},
                {"clock", "host steady clock; on a GPU: when work was queued"},
                {"clocks", clock_text(traces)}};
  const std::string path = fmt::format("{}/trace-{}.json.gz", config_.run_dir(), first);
  try {
    write_gzip(path, trace_json(traces, info));
    event(fmt::format("trace of steps {} to {}: {} (open it in ui.perfetto.dev)", first, step, path));
  } catch (const Error& e) { warn(step, fmt::format("the trace was not written: {}", e.what())); }
  const int columns = terminal_width();
  timeline_ = executed_timeline(traces, columns > 0 ? std::clamp(columns - 25, 40, 160) : 80);
  restart_clock();
}

void RunReporter::finish(const RunEnd& end) {
  const std::vector<CommRow> comm = comm_log_ ? comm_log_->rows() : std::vector<CommRow>();
  if (!log_) return;
  EndInfo info;
  if (comm_log_) {
    info.comm_json = comm_json(comm, comm_log_->steps());
    info.rows.push_back({"communication", comm_table(comm, comm_log_->steps(), rank_.mesh.shape().world())});
  }
  info.reason = end.done ? "finished" : "interrupted by a stop signal";
  if (end.code == Exit::kInterrupted)
    info.reason += ", everything is saved";
  else if (end.code != Exit::kOk)
    info.reason += ", but the last checkpoint could not be written";
  info.exit_code = static_cast<int>(end.code);
  info.step = state_->step;
  info.tokens = state_->consumed_tokens;
  info.seconds = state_.elapsed_seconds();
  info.last_loss = last_loss_;
  info.best_loss = state_->best_step >= 0 ? state_->best_loss : kUnknown;
  info.median_tokens_per_second = medians_.tokens_per_second();
  info.goodput = medians_.seconds() / std::max(now() - rank_.started, 1e-9);
  report_stages();
  info.median_mfu = mfu_at_rate_ * info.median_tokens_per_second;
  info.rows.emplace_back("steps", fmt::format("{} of {}, {} tokens, {}; goodput {:.0f} % of this process's time",
                                              info.step, config_.train.steps, format_thousands(info.tokens),
                                              format_duration(info.seconds), 100 * info.goodput));
  for (const auto& row : medians()) info.rows.push_back(row);
  for (const auto& row : end_block(end)) info.rows.push_back(row);
  info.next = next_commands(config_, end.code, end.saved_step);
  log_->end(info);
  remember_prediction();
}

// Corrects later predictions on this machine by what this run measured.
void RunReporter::remember_prediction() const {
  constexpr int64_t kLeastSteps = 10;
  double seconds = 0;
  const std::vector<Timers> means = breakdown_->means(seconds);
  if (!prediction_ || means.empty() || medians_.steps() < kLeastSteps) return;
  auto times = MeasuredTimes::load(times_on_);
  if (!times) return;
  times->add_run(run_ratios(*prediction_, means, seconds));
  try {
    times->save();
  } catch (const Error& e) { fmt::print(stderr, "warning: measured times were not kept: {}\n", e.what()); }
}

// ", stage 1 computes longest: 12.1 % above the mean".
std::string RunReporter::slowest_text() const {
  double seconds = 0, sum = 0, most = 0;
  size_t slowest = 0;
  const std::vector<Timers> means = breakdown_->means(seconds);
  for (size_t k = 0; k < means.size(); ++k) {
    double busy = 0;
    for (const StageTime t : {kForwardTime, kBackwardTime, kInputGradTime, kWeightGradTime, kMicrobatchTime})
      busy += means[k][t];
    sum += busy;
    if (busy > most) most = busy, slowest = k;
  }
  if (sum <= 0) return "";
  return fmt::format("; stage {} computes longest, {:.1f} % above the mean", slowest,
                     100 * (most * static_cast<double>(means.size()) / sum - 1));
}

// Losses, medians of the steps, and what was predicted beside what was measured.
Rows RunReporter::medians() const {
  Rows rows;
  if (medians_.steps() == 0) return rows;
  std::string best;
  if (state_->best_step >= 0)
    best = fmt::format(", best of evaluation {:.4f} at step {}", state_->best_loss, state_->best_step);
  rows.emplace_back("loss", fmt::format("last {:.4f}{}", last_loss_, best));
  rows.emplace_back("medians", medians_.text(mfu_at_rate_ * medians_.tokens_per_second()));
  if (rank_.mesh.shape().pp > 1)
    rows.emplace_back("pipeline", fmt::format("bubble {:.1f} % predicted, {:.1f} % measured{}", 100 * predicted_bubble_,
                                              100 * medians_.pipeline_bubble(), slowest_text()));
  double seconds = 0;
  if (const std::vector<Timers> means = breakdown_->means(seconds); prediction_ && !means.empty())
    rows.emplace_back("prediction", prediction_text(*prediction_, means, seconds));
  if (largest_) {
    const auto bytes = [](const MemoryBytes& m) { return format_bytes(static_cast<double>(total(m))); };
    rows.emplace_back(
        "memory", fmt::format("rank {} (stage {}) needs most: {} planned, {} measured; {}", largest_->rank,
                              largest_->stage, bytes(largest_->planned), bytes(largest_->measured), process_text()));
  }
  return rows;
}

Rows RunReporter::end_block(const RunEnd& end) const {
  Rows rows;
  std::string counted;
  if (config_.train.layer_drop.enabled) counted += " (all blocks counted, including dropped ones)";
  const double model_flops = engine_.spec().train_flops(state_->consumed_tokens);
  constexpr double kPetaflopDay = 8.64e19;
  if (loader_.curriculum()) counted += " (attention counted at full length)";
  rows.push_back({"total FLOPs", fmt::format("{:.3e}{} = {:.3g} petaflop/s-days; executed by this process: {:.3e}",
                                             model_flops, counted, model_flops / kPetaflopDay, executed_flops_)});
  if (rank_.backend.replays) rows.push_back({"graphs", graphs_line(engine_.replays())});
  if (end.spikes_taken > 0)
    rows.push_back({"spikes", fmt::format("{} of {} steps had a loss or gradient norm far above the median; their "
                                          "updates were applied (--fault.spike_action skip skips them)",
                                          end.spikes_taken, state_->step)});
  if (const std::string table = breakdown_->table(); !table.empty()) rows.push_back({"time", table});
  if (!timeline_.empty())
    rows.push_back({"timeline", timeline_ + "the last traced step in milliseconds: digit forward, letter backward, "
                                            "capital weight gradients only, ~ waiting for a message, . idle"});
  rows.push_back({"logs", config_.run_dir() + "/log.jsonl"});
  if (config_.log.report || config_.log.report_every > 0)
    rows.push_back({"report", config_.run_dir() + "/report.html"});
  rows.push_back({"checkpoint", end.saved_step >= 0
                                    ? fmt::format("{}/step-{:09}", config_.checkpoint_dir(), end.saved_step)
                                    : "none"});
  rows.insert(rows.end(), end.range_test.begin(), end.range_test.end());
  return rows;
}

void RunReporter::require_written() const {
  const std::string unwritten = log_ ? log_->unwritten() : "";
  GT_REQUIRE(unwritten.empty(), Exit::kIo, "finished at step ", state_->step,
             ", but not all of its logs are written: ", unwritten);
}

}  // namespace gt
