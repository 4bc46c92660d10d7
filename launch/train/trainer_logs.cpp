// What the trainer tells: the start block, the record of a step, traces, the end block.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "kernels/core/host.h"
#include "kernels/core/sha256.h"
#include "kernels/core/text.h"
#include "launch/engine/engine_options.h"
#include "launch/engine/module_flops.h"
#include "launch/observe/banner.h"
#include "launch/observe/predict.h"
#include "launch/observe/sinks/console.h"
#include "launch/observe/sinks/log_jsonl.h"
#include "launch/observe/sinks/progress.h"
#include "launch/observe/sinks/samples_sink.h"
#include "launch/observe/sinks/tensorboard_sink.h"
#include "launch/train/trainer.h"

namespace gt {
namespace fs = std::filesystem;
namespace {

double median(std::vector<double> v) {
  if (v.empty()) return kUnknown;
  std::nth_element(v.begin(), v.begin() + static_cast<ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

int64_t resident_bytes() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  return int64_t{u.ru_maxrss} * 1024;
}

}  // namespace

void Trainer::start_logs() {
  std::vector<std::unique_ptr<Sink>> sinks;
  ConsoleOptions console;
  console.every = config_.log.every;
  console.bar = use_progress_bar(config_.log.progress);
  console.quiet = run_.quiet || (config_.log.level != "info" && config_.log.level != "debug");
  sinks.push_back(std::make_unique<ConsoleSink>(console));
  sinks.push_back(std::make_unique<JsonlSink>());
  std::function<DeviceConditions()> look;
  if (backend_->kind == DeviceKind::kCuda && backend_->conditions != nullptr)
    look = [ask = backend_->conditions, index = device_.index()] { return ask(index, nullptr); };
  if (config_.log.tensorboard) sinks.push_back(std::make_unique<TensorBoardSink>(config_.log.every, look));
  StartInfo info;
  add_sample_curves(sinks, info);
  log_ = std::make_unique<MetricsWriter>(std::move(sinks));
  if (mesh_->shape().pp > 1)
    predicted_bubble_ = predict_pipeline(engine_options(config_, threads_), mesh_->shape().pp).bubble;

  breakdown_ = StepBreakdown(computes_behind(*backend_->device) ? 4 : 2);
  info.command = run_.command;
  info.config_json = config_json(config_);
  info.run_dir = config_.run_dir();
  info.first_step = first_step_;
  info.total_steps = config_.train.steps;
  info.resumed_from = resumed_ && saver_->saved_step() >= 0 ? state_.step : -1;
  info.eval_every = config_.train.eval_every;
  info.save_every = config_.checkpoint.save_steps();
  info.world = mesh_->shape().world();
  const EngineOptions options = engine_options(config_, threads_);
  info.layout = stage_table(options, mesh_->shape(), stage_plans_);
  info.environment = backend_->device->describe(device_.index());
  peak_flops_ = peak_bf16_flops(info.environment);
  peak_fp8_ = peak_fp8_flops(info.environment);
  ceilings_ = load_ceilings(info.environment, options.precision.linear());
  BannerFacts facts{config_, options, stage_plans_, *fit_, *backend_, *train_data_, valid_data_.get()};
  facts.comm = factory_.backend();
  facts.threads = threads_;
  facts.resumed_from = info.resumed_from;
  facts.checkpoint = resumed_ ? resumed_->path : "";
  facts.device = device_.index();
  facts.transport = device_.transport();
  if (backend_->kind != DeviceKind::kCpu || ceilings_) facts.mfu = mfu_line(peak_flops_, ceilings_);
  if (!run_.range_test) facts.saves = saver_->describe();
  if (resumed_ && info.resumed_from < 0)
    facts.loaded = fmt::format("{} of {}", fmt::join(config_.checkpoint.load, ", "), resumed_->path);
  facts.folders = std::move(info.rows);
  facts.notes = notes_;
  facts.notes.insert(facts.notes.end(), run_.loaded.notes.begin(), run_.loaded.notes.end());
  info.rows = start_rows(facts);
  log_->start(info);
  if (resumed_)
    for (const std::string& w : resumed_->warnings) log_->warn(state_.step, w);
}

// Two x-axes never share a folder: a resumed curve drops what lies after its first x. Samples are counted by steps, as
// DeepSpeed does: what a rollback leaves out is no step.
void Trainer::add_sample_curves(std::vector<std::unique_ptr<Sink>>& sinks, StartInfo& info) {
  const auto folder_of = [&](const std::string& wanted) {
    std::error_code ec;
    const bool same = fs::weakly_canonical(wanted, ec) == fs::weakly_canonical(config_.run_dir(), ec);
    const std::string folder = same ? wanted + "/samples" : wanted;
    info.rows.push_back(
        {"curves", folder + (same ? " (over samples; those over steps are in the run's folder)" : " (over samples)")});
    return folder;
  };
  const int64_t samples = state_.curriculum ? state_.curriculum->samples : state_.consumed_tokens / config_.model.seq;
  const SampleAxis axis{state_.step, samples, config_.train.global_batch};
  const bool times = config_.log.timers || config_.log.flops_step > 0;
  if (const std::string& to = config_.log.samples_tensorboard; !to.empty())
    sinks.push_back(std::make_unique<SamplesSink>(tensorboard_curves(folder_of(to), axis), axis, times));
  if (const std::string& to = config_.log.samples_csv; !to.empty())
    sinks.push_back(std::make_unique<SamplesSink>(csv_curves(folder_of(to), axis), axis, times));
}

// What is logged of the step that ended now. Rank 0's; moves the marks from which the next step is measured.
StepRecord Trainer::record_of(const StepResult& r) {
  const double end = now(), seconds = end - step_ended_, rate = static_cast<double>(global_tokens(length())) / seconds;
  StepRecord rec;
  rec.step = state_.step;
  rec.total_steps = config_.train.steps;
  rec.time = wall_seconds();
  rec.tokens = state_.consumed_tokens;
  rec.samples = state_.consumed_samples;
  rec.global_batch = config_.train.global_batch;
  rec.seq = length();
  rec.epoch = (state_.consumed_samples - 1) / std::max<int64_t>(1, train_data_->size());
  rec.loss = r.loss;
  rec.grad_norm = r.grad_norm;
  rec.clip_coef = r.clip;
  rec.lr = r.lr;
  if (r.momentum != kOptimizersOwn) rec.momentum = r.momentum;
  if (engine_->loss_scaler().options().dynamic || r.loss_scale != 1) rec.loss_scale = r.loss_scale;
  rec.skipped = state_.skipped_steps;
  rec.step_seconds = seconds;
  rec.tokens_per_second = rate;
  const StepFlops flops = step_flops(engine_->options(), mesh_->shape().pp, global_tokens(length()), length(), r.blocks);
  const double devices = static_cast<double>(mesh_->shape().world()) / device_.sharers();
  rec.tflops_per_device = flops.causal / seconds / devices * 1e-12;
  rec.mfu = flops.causal / (seconds * devices * peak_flops_);
  rec.mfu_full = flops.full / (seconds * devices * peak_flops_);
  rec.hfu = flops.hardware / (seconds * devices * peak_flops_);
  if (engine_->options().precision.fp8) rec.mfu_fp8 = flops.causal / (seconds * devices * peak_fp8_);
  if (ceilings_) rec.of_ceiling = flops.causal / (seconds * devices * ceilings_->gemm);
  mfu_at_rate_ = rec.mfu / rate;
  add_times(rec, r, seconds);
  breakdown_.add(r.times, seconds);
  step_ended_ = end;
  recent_rates_.push_back(rate);
  return rec;
}

// Where the step's time went: shares, bubbles, waits, peaks.
void Trainer::add_times(StepRecord& rec, const StepResult& r, double seconds) {
  const bool behind = computes_behind(*backend_->device);
  if (recent_rates_.size() > (behind ? 3 : 1)) rec.bubble = std::max(0.0, 1 - r.times.mean_busy() / seconds);
  if (mesh_->shape().world() > 1 && !behind) rec.exposed_comm = r.times.mean_exposed() / seconds;
  if (mesh_->shape().pp > 1) {
    rec.pipeline_bubble = r.times.pipeline_bubble();
    rec.bubble_predicted = predicted_bubble_;
  }
  const double waited = loader_->wait_seconds() - wait_before_;
  rec.data_wait = waited / seconds;
  if (config_.data.train.front().path != "mock")
    if (const auto warning = data_wait_.step(waited, seconds)) log_->warn(state_.step, *warning);
  rec.peak_bytes = resident_bytes();
  rec.timers = r.times.mean();
  rec.longest = r.times.longest();
  wait_before_ = loader_->wait_seconds();
}

// Once: work that makes other calls than before costs speed and nothing else.
void Trainer::warn_of_eager_work() {
  if (!log_ || eager_told_ || !backend_->replays) return;
  const ReplayCounts c = engine_->replays();
  if (c.eager == 0 || module_timer_) return;
  eager_told_ = true;
  log_->push(make_event(
      state_.step, fmt::format("graphs: work was queued call by call ({}); the end of the run says how often", c.why)));
}

void Trainer::say_where_time_and_memory_went(const StepRecord& rec) {
  if (config_.log.timers) {
    std::string text = "time";
    for (size_t t = 0; t < rec.timers.size(); ++t)
      if (kTimerNames[t] != nullptr && rec.timers[t] != 0)
        text += fmt::format("  {} {:.1f}", kTimerNames[t], 1e3 * rec.timers[t]);
    log_->push(make_event(rec.step, text + fmt::format("  of {:.1f} ms", 1e3 * rec.step_seconds)));
  }
  if (config_.log.memory)
    log_->push(make_event(rec.step,
                          fmt::format("memory of rank 0: {} | process {}", memory_line(engine_->measured_plan().memory),
                                      format_bytes(static_cast<double>(resident_bytes())))));
}

// Collective: every rank knows the ratios of its stage, rank 0 logs them all.
void Trainer::log_trust_ratios() {
  if (config_.log.lamb_every == 0 || state_.step % config_.log.lamb_every != 0) return;
  const std::vector<TrustRatio> mine = engine_->optimizer().trust_ratios(compute_);
  if (!trust_ratios_) trust_ratios_ = std::make_unique<TrustRatioLog>(mine, mesh_->world());
  for (const TrustRatio& r : trust_ratios_->gather(mine))
    if (log_) log_->push(make_scalar(state_.step, "train/lamb_coeff/" + r.tensor, static_cast<double>(r.ratio)));
}

// Once everything that takes memory has run: two steps, and an evaluation where there are any.
void Trainer::report_memory() {
  const bool evaluated = config_.train.eval_every == 0 || state_.step - first_step_ + 1 >= config_.train.eval_every;
  if (!log_ || memory_reported_ || state_.step <= first_step_ || !evaluated) return;
  memory_reported_ = true;
  log_->push(make_event(
      state_.step,
      fmt::format("memory of rank 0: planned {} | measured {} | process {}", memory_line(plan_.memory),
                  memory_line(engine_->measured_plan().memory), format_bytes(static_cast<double>(resident_bytes())))));
}

// What the backend decided since the last step: in the first one, and where a new shape came.
void Trainer::say_who_computes_attention() {
  if (backend_->attention_news == nullptr) return;
  const std::string news = backend_->attention_news();
  if (news.empty()) return;
  std::istringstream lines(news);
  for (std::string line; std::getline(lines, line);) log_->push(make_event(state_.step, line));
}

// Collective. The table of log.flops_step, to a file, and to standard output unless that was asked for by name.
void Trainer::report_flops(double seconds) {
  std::vector<ModuleCost> leaves =
      module_costs(engine_->spec(), global_tokens(length()), length(), engine_->kept_blocks());
  module_timer_->share(mesh_->world(), leaves);
  module_timer_.reset();
  if (!log_) return;
  const LogConfig& c = config_.log;
  const std::string table = flops_table(leaves, {.step = state_.step,
                                                 .depth = static_cast<int>(c.flops_depth),
                                                 .top = static_cast<int>(c.flops_top),
                                                 .detailed = c.flops_detailed,
                                                 .recompute_factor = c.flops_recompute_factor,
                                                 .replicas = config_.parallel.tp * config_.parallel.dp,
                                                 .step_seconds = seconds,
                                                 .batch = fmt::format("{} sequences of {} tokens",
                                                                      config_.train.global_batch, length())});
  const std::string path =
      c.flops_file.empty() ? fmt::format("{}/flops-{}.txt", config_.run_dir(), state_.step) : c.flops_file;
  try {
    if (c.flops_file.empty()) write_run_file(path, table);
    if (!c.flops_file.empty() && !(std::ofstream(path) << table << std::flush))
      fail(Exit::kIo, path, ": cannot be written");
  } catch (const Error& e) {
    log_->warn(state_.step, fmt::format("the table of log.flops_step was not written: {}", e.what()));
  }
  if (c.flops_file.empty() && !run_.quiet) {
    log_->flush();
    fmt::print("{}", table);
    std::fflush(stdout);
  }
  log_->push(make_event(state_.step, fmt::format("FLOPs by module: {}; this step waited for each op", path)));
}

// Like a log: what cannot be written is said, and training goes on.
void Trainer::write_trace() {
  const std::vector<RankTrace> traces = trace_->gather();
  if (!log_ || traces.empty()) return;
  const TraceWindow w = parse_trace_window(config_.log.trace_steps);
  const int64_t first = std::max(w.first, first_step_);
  const EngineOptions options = engine_options(config_, threads_);
  TraceInfo info;
  info.tokens = config_.train.micro_batch * length();
  info.stage_flops = stage_flops(options, mesh_->shape().pp, info.tokens);
  info.other = {{"command", run_.command},
                {"config_sha256", sha256_hex(config_json(config_))},
                {"clock", "host steady clock; on a GPU: when work was queued"},
                {"clocks", clock_text(traces)}};
  const std::string path = fmt::format("{}/trace-{}.json.gz", config_.run_dir(), first);
  try {
    write_gzip(path, trace_json(traces, info));
    log_->push(make_event(state_.step, fmt::format("trace of steps {} to {}: {} (open it in ui.perfetto.dev)", first,
                                                   state_.step, path)));
  } catch (const Error& e) { log_->warn(state_.step, fmt::format("the trace was not written: {}", e.what())); }
  const int columns = terminal_width();
  timeline_ = executed_timeline(traces, columns > 0 ? std::clamp(columns - 25, 40, 160) : 80);
  step_ended_ = now();
}

void Trainer::report_range(EndInfo& info) const {
  const std::string path = config_.run_dir() + "/lr_range.csv";
  std::string csv = "step,lr,loss\n";
  for (size_t i = 0; i < range_.size(); ++i) csv += fmt::format("{},{},{}\n", i + 1, range_[i].lr, range_[i].loss);
  std::string written = path;
  try {
    write_run_file(path, csv);
  } catch (const Error& e) { written = e.what(); }
  info.rows.push_back({"range test", written});
  const RangeVerdict v = judge_range(range_);
  if (!v.enough)
    return info.rows.push_back({"peak", "none proposed: the loss never fell, or there were fewer than 10 steps"});
  const std::string largest =
      v.diverged ? fmt::format("{:.3g}: there the smoothed loss was lowest ({:.4f})", v.largest_stable, v.lowest_loss)
                 : fmt::format("at least {:.3g}: the loss had not risen at the end; a larger --optim.lr tells more",
                               v.largest_stable);
  info.rows.push_back({"largest lr", largest});
  info.rows.push_back({"peak", fmt::format("--optim.lr {:.2g} is proposed: half of that", v.suggested_peak)});
}

void Trainer::finish(Exit code, bool done) {
  const std::vector<CommRow> comm = comm_log_ ? comm_log_->rows() : std::vector<CommRow>();
  if (!log_) return;
  EndInfo info;
  if (comm_log_) {
    info.comm_json = comm_json(comm, comm_log_->steps());
    info.rows.push_back({"communication", comm_table(comm, comm_log_->steps(), mesh_->shape().world())});
  }
  info.reason = done ? "finished" : "interrupted by a stop signal";
  if (code != Exit::kOk)
    info.reason += code == Exit::kInterrupted ? ", everything is saved" : ", but the last checkpoint could not be written";
  info.exit_code = static_cast<int>(code);
  info.step = state_.step;
  info.tokens = state_.consumed_tokens;
  info.seconds = state_.elapsed_seconds + now() - started_;
  info.last_loss = last_loss_;
  info.best_loss = state_.best_step >= 0 ? state_.best_loss : kUnknown;
  if (recent_rates_.size() > 2) recent_rates_.erase(recent_rates_.begin(), recent_rates_.begin() + 2);
  info.median_tokens_per_second = median(recent_rates_);
  info.median_mfu = mfu_at_rate_ * info.median_tokens_per_second;
  const std::string dir = config_.run_dir();
  std::string counted;
  if (config_.train.pld) counted += " (all blocks counted, those too that steps left out)";
  if (curriculum_) counted += " (attention counted at full length)";
  info.rows.push_back(
      {"total FLOPs", fmt::format("{:.3e}{}", engine_->spec().train_flops(state_.consumed_tokens), counted)});
  if (backend_->replays) info.rows.push_back({"graphs", graphs_line(engine_->replays())});
  if (const int64_t n = guard_.spikes_taken(); n > 0)
    info.rows.push_back({"spikes", fmt::format("{} of {} steps had a loss or gradient norm far above those before; their "
                                               "updates were taken (--fault.spike_action skip leaves such out)",
                                               n, state_.step)});
  if (const std::string table = breakdown_.table(); !table.empty()) info.rows.push_back({"time", table});
  if (!timeline_.empty())
    info.rows.push_back({"timeline", timeline_ + "the last traced step, milliseconds: digit forward, letter backward, "
                                                 "capital weights only, ~ waiting for a message, . idle"});
  info.rows.push_back({"logs", dir + "/log.jsonl"});
  info.rows.push_back({"checkpoint", saver_->saved_step() >= 0
                                         ? fmt::format("{}/step-{:09}", config_.checkpoint_dir(), saver_->saved_step())
                                         : "none"});
  if (run_.range_test) report_range(info);
  if (code != Exit::kOk)
    info.next.push_back(saver_->saved_step() < 0
                            ? "the same command again begins anew: there is no checkpoint"
                            : fmt::format("the same command again resumes from step {}", saver_->saved_step()));
  info.next.push_back("tensorboard --logdir " + shell_word(dir));
  if (saver_->saved_step() >= 0 && config_.data.train.front().path != "mock")  // whose tokens mean nothing
    info.next.push_back(fmt::format("gpttrain generate --load {}{} --prompt \"…\"", shell_word(dir),
                                    config_.data.tokenizer.empty() ? " --tokenizer TOKENIZER.model" : ""));
  log_->end(info);
}

}  // namespace gt
