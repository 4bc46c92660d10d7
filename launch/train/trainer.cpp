#include "launch/train/trainer.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "data/index_store.h"
#include "kernels/core/host.h"
#include "kernels/core/sha256.h"
#include "launch/logs/banner.h"
#include "launch/logs/console.h"
#include "launch/logs/log_jsonl.h"
#include "launch/logs/predict.h"
#include "launch/logs/progress.h"
#include "launch/logs/samples_sink.h"
#include "launch/logs/tensorboard_sink.h"
#include "launch/ranks/agree.h"
#include "launch/ranks/signals.h"
#include "launch/train/engine_options.h"

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

// 16 random bytes of rank 0 as hex: names the run in its checkpoints.
std::string shared_uuid(ProcessGroup& world) {
  int32_t words[4] = {};
  if (world.rank() == 0) {
    std::ifstream in("/dev/urandom", std::ios::binary);
    in.read(reinterpret_cast<char*>(words), sizeof words);
  }
  world.broadcast({reinterpret_cast<std::byte*>(words), {4}, DType::kI32, {}}, 0, {}).wait({});
  std::string out;
  for (int32_t w : words) out += fmt::format("{:08x}", static_cast<uint32_t>(w));
  return out;
}

}  // namespace

Trainer::Trainer(const TrainRun& run, GroupFactory& factory)
    : run_(run),
      config_(run_.loaded.config),
      factory_(factory),
      guard_({config_.fault.spike_z, spike_action_from(config_.fault.spike_action), config_.fault.bad_steps,
              config_.fault.max_rollbacks}),
      injector_(config_.fault.inject, factory.world_rank()),
      started_(now()) {
  mesh_ = std::make_unique<Mesh>(mesh_shape(config_), factory);
  ProcessGroup& world = mesh_->world();
  agree(world, [&] { open_device(); });
  agree(world, [&] {
    if (!speaks() || run_.dry_run) return;
    open_run_folder();
    if (!run_.range_test) lock_folder();  // which saves nothing
  });
  agree(world, [&] { open_data(); });
  require_equal_order();
  engine_ = std::make_unique<Engine>(engine_options(config_, threads_), *mesh_, *backend_, compute_, plan_);
  saver_ = std::make_unique<RunSaver>(config_, *mesh_, *backend_, compute_);
  mesh_->status().set_step_limit(config_.comm.stall_warn_s);
  mesh_->status().enter(RunPhase::kLoad, 0);
  load_or_init();
  agree(world, [&] {
    if (speaks() && !run_.dry_run) write_config();
  });
  if (config_.log.comm) comm_log_ = std::make_unique<CommLog>(*mesh_);
  if (const TraceWindow w = parse_trace_window(config_.log.trace_steps); w.end > w.first)
    trace_ = std::make_unique<TraceSession>(*mesh_, w, config_.log.trace_ranks == "all");
  if (speaks()) start_logs();
  watch_steps();
  saver_->set_log(log_.get());
  saver_->set_lock(lock_.get());
}

Trainer::~Trainer() {
  saver_.reset();
  eval_loader_.reset();
  loader_.reset();
  engine_.reset();
  if (device_open_) backend_->device->close_stream(compute_);
}

void Trainer::open_device() {
  backend_ = &choose_backend(config_);
  threads_ = threads_per_rank(config_, factory_.local_size());
  set_cpu_may_spin(factory_.local_size() * threads_ <= static_cast<int>(std::thread::hardware_concurrency()));
  const EngineOptions options = engine_options(config_, threads_);
  if (factory_.local_rank() == 0) {
    stage_plans_ = plan_stages(options, mesh_->shape(), *backend_);
    require_memory(options, mesh_->shape(), stage_plans_, *backend_, factory_.local_size(),
                   config_.checkpoint.async && std::string_view(backend_->device->name) == "cpu");
  }
  plan_ = speaks() ? stage_plans_.front() : plan_memory(options, mesh_->shape(), mesh_->rank(), *backend_);
  compute_ = backend_->device->open_stream(0, threads_);
  device_open_ = true;
}

void Trainer::open_run_folder() {
  const fs::path dir = config_.run_dir();
  std::error_code ec;
  const bool used = fs::exists(dir / "log.jsonl", ec) ||
                    (fs::exists(config_.checkpoint_dir(), ec) && !fs::is_empty(config_.checkpoint_dir(), ec));
  GT_REQUIRE(!(used && config_.checkpoint.resume == "never" && !run_.force), Exit::kUsage, dir.string(),
             ": holds a run already and --checkpoint.resume never would start afresh in it. Give --log.name another "
             "name, resume it ",
             "(--checkpoint.resume auto), or add --force");
  fs::create_directories(dir, ec);
  GT_REQUIRE(!ec, Exit::kUsage, dir.string(), ": cannot make the run folder: ", ec.message(),
             ". Choose another with --log.dir");
}

// A folder that takes no lock takes no checkpoints either: each save will say so, and training goes on.
void Trainer::lock_folder() {
  try {
    lock_ = std::make_unique<DirLock>(config_.checkpoint_dir());
  } catch (const IoError& e) { fmt::print(stderr, "warning: {}\n", e.what()); }
}

// After everything that may refuse the run: a refused command leaves the config of the run as it was.
void Trainer::write_config() const {
  const std::string path = config_.run_dir() + "/config.json";
  std::ofstream out(path);
  out << config_json(config_);
  out.close();
  GT_REQUIRE(out.good(), Exit::kUsage, path,
             ": cannot write: the run folder must be writable. Choose another with --log.dir");
}

void Trainer::open_data() {
  DatasetOptions o;
  o.sources = config_.data.train;
  o.split = config_.data.split;
  o.whole = !config_.data.valid.empty();
  o.seq = config_.model.seq;
  o.seed = static_cast<uint64_t>(config_.train.seed);
  o.order = sample_order_from(config_.data.order);
  o.num_samples = config_.train.steps * config_.train.global_batch;
  o.vocab = config_.model.vocab;
  if (!config_.data.tokenizer.empty()) o.tokenizer_sha256 = sha256_file_hex(config_.data.tokenizer);
  o.cache_dir = default_cache_dir();
  o.builder = factory_.local_rank() == 0;
  o.warn = [this](const std::string& text) {
    if (speaks()) fmt::print(stderr, "warning: {}\n", text);
  };
  try {
    train_data_ = open_dataset(o);
  } catch (const Error& e) {  // who named these files
    const auto origin = run_.loaded.origin.find("data.train");
    if (origin == run_.loaded.origin.end()) throw;
    throw Error(std::string(e.what()) + "\ndata.train was set by " + origin->second, e.code());
  }
  if (config_.train.eval_every == 0) return;
  if (o.whole)
    o.sources = config_.data.valid;
  else
    o.part = 1;
  o.order = SampleOrder::kSequential;
  valid_data_ = open_dataset(o);
}

// Ranks that built or read different sample orders would train on different data without a word.
void Trainer::require_equal_order() {
  int64_t hashes[2] = {static_cast<int64_t>(train_data_->order_hash() >> 1), 0};
  hashes[1] = -hashes[0];
  mesh_->world().all_reduce({reinterpret_cast<std::byte*>(hashes), {2}, DType::kI64, {}}, ReduceOp::kMax, {}).wait({});
  agree(mesh_->world(), [&] {
    GT_REQUIRE(hashes[0] == -hashes[1], Exit::kUsage, "the ranks disagree about the order of samples of ",
               config_.data.train.front().path, ": its files differ between machines, or an index below ",
               default_cache_dir(), " is stale; copy the files again and remove that folder");
  });
}

// What a checkpoint must have in common with this run beside its tensors. Weights from elsewhere bring no data.
void Trainer::accept(const LoadReport& found) const {
  const auto changed = found.config_json.empty()
                           ? std::vector<std::string>()
                           : changed_keys(found.config_json, config_, config_.checkpoint.allow_change);
  const bool imported = found.state.origin == "import";
  std::string text;
  for (const std::string& line : changed)
    if (!imported || (line.rfind("model.", 0) == 0 && line.find("dropout") == std::string::npos)) text += "\n  " + line;
  GT_REQUIRE(text.empty(), Exit::kUsage, found.path, ": this run would not go on as the checkpoint's did:", text,
             "\nRestore these settings, allow them by name (--checkpoint.allow_change optim.lr, or a whole section), "
             "or start a new run with another --log.name");
  if (!imported)
    require_same_stream(data_cursor_from_json(found.state.data_json), train_data_->cursor(found.state.consumed_samples),
                        config_.data.allow_change);
}

// A pattern that finds nothing anywhere is a misspelt name.
void Trainer::require_patterns_found() {
  std::vector<int64_t> found = engine_->no_decay_found();
  if (found.empty()) return;
  mesh_->world()
      .all_reduce({reinterpret_cast<std::byte*>(found.data()), {static_cast<int64_t>(found.size())}, DType::kI64, {}},
                  ReduceOp::kSum, {})
      .wait({});
  agree(mesh_->world(), [&] {
    for (size_t i = 0; i < found.size(); ++i)
      GT_REQUIRE(found[i] > 0, Exit::kUsage, "optim.no_decay: \"", config_.optim.no_decay[i],
                 "\" finds no parameter; their names are those of `gpttrain ckpt inspect`, such as ",
                 engine_->store().tensors().front()->name);
  });
}

// State of one optimizer means nothing to another, though it may have the same shapes. Looked at before the load, which
// would only speak of missing tensors; whatever else is wrong with the checkpoint is the load's to tell.
void Trainer::require_same_optimizer() {
  std::string step, was;
  try {
    const std::string dir = config_.checkpoint_dir(), &which = config_.checkpoint.resume;
    int64_t number = 0;
    step = which != "auto" && parse_int(which, number) ? fmt::format("{}/step-{:09}", dir, number) : resolve_step(dir);
    was = read_state(step).optim_type;
  } catch (const Error&) { return; }
  if (was.empty()) return;  // imported weights: there is no state
  GT_REQUIRE(was == config_.optim.type, Exit::kUsage, "optim.type: ", step, " holds the state of ", was,
             ", this run wants ", config_.optim.type, ". Resume with --optim.type ", was,
             ", or start a new run with another --log.name");
}

void Trainer::note_schedule_change() {
  if (state_.applied_steps == 0) return;
  const LrSchedule& schedule = engine_->lr_schedule();
  // The last step was applied, or skipped at the rate of the next.
  const auto rate = [&](int64_t t) { return static_cast<double>(static_cast<float>(schedule.at(t).lr)); };
  const int64_t t = state_.applied_steps;
  if (state_.lr_value == rate(t) || state_.lr_value == rate(t + 1)) return;
  resumed_->warnings.push_back(fmt::format(
      "the learning-rate schedule changed: the last step before the checkpoint used {:.6g} ({}), this run's schedule "
      "({}) has {:.6g} there",
      state_.lr_value, state_.lr_type, config_.schedule.type, rate(t)));
}

// A checkpoint of a run with a fixed scale has none: a dynamic one then begins as in a fresh run.
void Trainer::restore_scaler() {
  if (!engine_->loss_scaler().options().dynamic) {
    state_.scaler.reset();
  } else if (state_.scaler) {
    engine_->loss_scaler().restore({state_.scaler->scale, state_.scaler->clean, state_.scaler->hysteresis});
  }
}

void Trainer::load_or_init() {
  ProcessGroup& world = mesh_->world();
  if (config_.checkpoint.resume != "never") {
    agree(world, [&] {
      if (world.rank() == 0) require_same_optimizer();
    });
    agree(world, [&] {
      resumed_ =
          load_checkpoint(config_.checkpoint_dir(), config_.checkpoint.resume, engine_->checkpoint_views(), *mesh_,
                          *backend_->device, compute_, [this](const LoadReport& found) { accept(found); });
    });
  }
  require_patterns_found();
  if (resumed_) {
    go_on_from(resumed_->state);
    note_schedule_change();
    guard_.restore(state_.bad_steps_json);
  } else {
    engine_->init_weights();
    state_.run_uuid = shared_uuid(world);
    state_.seed = static_cast<uint64_t>(config_.train.seed);
  }
  skips_ = std::make_unique<SkipWatch>(config_.precision.max_consecutive_skips, state_.skips_in_a_row);
  first_step_ = state_.step + 1;
  open_loader();
  if (!valid_data_) return;
  LoaderConfig l = loader_config();
  l.prefetch = 1;
  eval_loader_ = std::make_unique<Loader>(*valid_data_, l, compute_.device, *backend_->device, compute_);
}

// State and weights are those of a checkpoint.
void Trainer::go_on_from(const TrainState& state) {
  state_ = state;
  engine_->set_applied_steps(state_.applied_steps);
  restore_scaler();
  engine_->store().adopt_masters();
  if (!state_.data_json.empty()) skip_windows_ = data_cursor_from_json(state_.data_json).skip_windows;
  saver_->set_saved_step(state_.step);
}

LoaderConfig Trainer::loader_config() const {
  LoaderConfig l;
  l.seq = config_.model.seq;
  l.micro_batch = config_.train.micro_batch;
  l.microbatches = static_cast<int>(config_.train.grad_accum);
  l.dp_rank = mesh_->coord(Axis::kDp);
  l.dp_size = mesh_->size(Axis::kDp);
  l.need_tokens = mesh_->first_stage();
  l.need_targets = mesh_->last_stage();
  return l;
}

void Trainer::open_loader() {
  loader_.reset();
  LoaderConfig l = loader_config();
  l.first_sample = state_.consumed_samples;
  l.skip_windows = skip_windows_;
  loader_ = std::make_unique<Loader>(*train_data_, l, compute_.device, *backend_->device, compute_);
}

void Trainer::start_logs() {
  std::vector<std::unique_ptr<Sink>> sinks;
  ConsoleOptions console;
  console.every = config_.log.every;
  console.bar = use_progress_bar(config_.log.progress);
  console.quiet = run_.quiet || (config_.log.level != "info" && config_.log.level != "debug");
  sinks.push_back(std::make_unique<ConsoleSink>(console));
  if (!run_.dry_run) {
    sinks.push_back(std::make_unique<JsonlSink>());
    if (config_.log.tensorboard) sinks.push_back(std::make_unique<TensorBoardSink>(config_.log.every));
  }
  StartInfo info;
  if (!run_.dry_run) add_sample_curves(sinks, info);
  log_ = std::make_unique<MetricsWriter>(std::move(sinks));
  if (mesh_->shape().pp > 1)
    predicted_bubble_ = predict_pipeline(engine_options(config_, threads_), mesh_->shape().pp).bubble;

  info.command = run_.command;
  info.config_json = config_json(config_);
  info.run_dir = config_.run_dir();
  info.first_step = first_step_;
  info.total_steps = config_.train.steps;
  info.resumed_from = resumed_ ? state_.step : -1;
  info.eval_every = config_.train.eval_every;
  info.save_every = config_.checkpoint.every;
  info.world = mesh_->shape().world();
  const EngineOptions options = engine_options(config_, threads_);
  info.layout = stage_table(options, mesh_->shape(), stage_plans_);
  info.environment = backend_->device->describe(0);
  const Rows folders = std::move(info.rows);
  info.rows =
      start_rows({config_, options, stage_plans_, *backend_, *train_data_, valid_data_.get(),
                  std::string(factory_.backend()), threads_, info.resumed_from, resumed_ ? resumed_->path : ""});
  info.rows.insert(info.rows.end(), folders.begin(), folders.end());
  for (const std::string& note : run_.loaded.notes) info.rows.push_back({"note", note});
  if (config_.log.config) info.rows.push_back({"config", info.config_json});
  log_->start(info);
  if (resumed_)
    for (const std::string& w : resumed_->warnings) log_->warn(state_.step, w);
}

// Two x-axes never share a folder: a resumed curve drops what lies after its first x.
void Trainer::add_sample_curves(std::vector<std::unique_ptr<Sink>>& sinks, StartInfo& info) {
  const auto folder_of = [&](const std::string& wanted) {
    std::error_code ec;
    const bool same = fs::weakly_canonical(wanted, ec) == fs::weakly_canonical(config_.run_dir(), ec);
    const std::string folder = same ? wanted + "/samples" : wanted;
    info.rows.push_back(
        {"curves", folder + (same ? " (over samples; those over steps are in the run's folder)" : " (over samples)")});
    return folder;
  };
  const SampleAxis axis{state_.step, state_.consumed_samples, config_.train.global_batch};
  const bool times = config_.log.timers;
  if (const std::string& to = config_.log.samples_tensorboard; !to.empty())
    sinks.push_back(std::make_unique<SamplesSink>(tensorboard_curves(folder_of(to), axis), axis, times));
  if (const std::string& to = config_.log.samples_csv; !to.empty())
    sinks.push_back(std::make_unique<SamplesSink>(csv_curves(folder_of(to)), axis, times));
}

Exit Trainer::run() {
  if (run_.dry_run) {
    if (speaks()) fmt::print("dry run: nothing was started\n");
    return Exit::kOk;
  }
  step_ended_ = now();
  if (log_ && state_.step >= config_.train.steps)
    log_->push(make_event(
        state_.step,
        fmt::format(
            "nothing to do: the run in {} is at step {} and train.steps is {}. More steps go on from there; another "
            "--log.name starts a new run",
            config_.run_dir(), state_.step, config_.train.steps)));
  while (state_.step < config_.train.steps && !stop_) {
    one_step();
    react_to_bad_step();
    const bool last = state_.step == config_.train.steps;
    if (trace_ && trace_->wants(state_.step) && (last || stop_ || !trace_->wants(state_.step + 1))) write_trace();
    if (run_.range_test) {
      const bool look = state_.step % std::max<int64_t>(1, config_.train.steps / 100) == 0;
      if (look && has_diverged(range_)) break;
      continue;
    }
    if (config_.train.eval_every > 0 && (state_.step % config_.train.eval_every == 0 || last)) evaluate();
    report_memory();
    if (last || stop_ || (config_.checkpoint.every > 0 && state_.step % config_.checkpoint.every == 0))
      save(last || stop_);
  }
  saver_->finish();
  const bool done = state_.step >= config_.train.steps || (run_.range_test && !stop_);
  agree(mesh_->world(), [&] {
    GT_REQUIRE(run_.range_test || saver_->saved_step() == state_.step || !(stop_ && !done), Exit::kIo,
               "stopped at step ", state_.step, ", but no checkpoint of it could be written; ",
               saver_->saved_step() < 0 ? std::string("there is none")
                                        : fmt::format("the last good one is of step {}", saver_->saved_step()));
  });
  finish(done ? Exit::kOk : Exit::kInterrupted);
  return done ? Exit::kOk : Exit::kInterrupted;
}

void Trainer::one_step() {
  const bool first = state_.step + 1 == first_step_;
  mesh_->status().enter(first ? RunPhase::kFirstStep : RunPhase::kStep, state_.step + 1);
  if (trace_) trace_->begin_step(state_.step + 1);
  injector_.at_step(state_.step + 1);
  if (injector_.wants("master", state_.step + 1)) {
    injector_.at_tensors("master", state_.step + 1, engine_->store().value_views(), *backend_, compute_);
    engine_->store().adopt_masters();
  }
  const double waited_before = loader_->wait_seconds();
  const auto microbatches = loader_->next();
  const double ready = now(), waited_for_data = loader_->wait_seconds() - waited_before;
  if (comm_log_) comm_log_->begin_step();
  const StepResult r = engine_->step(microbatches, global_tokens(), stop_requested(), saver_->ready());
  if (comm_log_) comm_log_->end_step();
  stop_ = r.stop;
  ++state_.step;
  state_.skipped_steps += r.skipped;
  state_.applied_steps = engine_->applied_steps();
  if (const LossScaler& s = engine_->loss_scaler(); s.options().dynamic)
    state_.scaler = {s.state().scale, s.state().clean, s.state().hysteresis};
  state_.consumed_samples = loader_->consumed();
  state_.consumed_tokens += global_tokens();
  state_.lr_value = r.lr;
  last_loss_ = r.loss;
  skips_->after(r, state_.step, *engine_);
  state_.skips_in_a_row = skips_->in_a_row();
  if (trace_) trace_->end_step(state_.step, engine_->executor(), r.phases, ready, waited_for_data);
  saver_->after_step(r.save_ready);
  log_trust_ratios();
  if (run_.range_test) range_.push_back({r.lr, r.skipped ? std::numeric_limits<double>::infinity() : r.loss});
  if (!speaks()) return;

  const double end = now(), seconds = end - step_ended_, rate = static_cast<double>(global_tokens()) / seconds;
  StepRecord rec;
  rec.step = state_.step;
  rec.total_steps = config_.train.steps;
  rec.time = wall_seconds();
  rec.tokens = state_.consumed_tokens;
  rec.samples = state_.consumed_samples;
  rec.global_batch = config_.train.global_batch;
  rec.seq = config_.model.seq;
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
  rec.tflops_per_device = gpt_config(config_).train_flops(global_tokens()) / seconds / mesh_->shape().world() * 1e-12;
  if (recent_rates_.size() > 1) rec.bubble = std::max(0.0, 1 - r.times.mean_busy() / seconds);
  if (mesh_->shape().world() > 1) rec.exposed_comm = r.times.mean_exposed() / seconds;
  if (mesh_->shape().pp > 1) {
    rec.pipeline_bubble = r.times.pipeline_bubble();
    rec.bubble_predicted = predicted_bubble_;
  }
  const double waited = loader_->wait_seconds() - wait_before_;
  rec.data_wait = waited / seconds;
  if (const auto warning = data_wait_.step(waited, seconds)) log_->warn(state_.step, *warning);
  rec.peak_bytes = resident_bytes();
  rec.timers = r.times.mean();
  rec.longest = r.times.longest();
  breakdown_.add(r.times, seconds);
  wait_before_ = loader_->wait_seconds();
  step_ended_ = end;
  recent_rates_.push_back(rate);
  log_->push(rec);
  if (rec.step % config_.log.every == 0) say_where_time_and_memory_went(rec);
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

void Trainer::evaluate() {
  const double begin = now();
  mesh_->status().enter(RunPhase::kEval, state_.step);
  eval_loader_->restore(0);
  double sum = 0;
  for (int64_t k = 0; k < config_.train.eval_steps; ++k) sum += engine_->evaluate(eval_loader_->next());
  EvalRecord rec;
  rec.step = state_.step;
  rec.time = wall_seconds();
  rec.tokens = config_.train.eval_steps * global_tokens();
  rec.loss = sum / static_cast<double>(rec.tokens);
  rec.seconds = now() - begin;
  if (state_.best_step < 0 || rec.loss < state_.best_loss) {
    state_.best_loss = rec.loss;
    state_.best_step = state_.step;
  }
  if (log_) log_->push(rec);
  step_ended_ = now();
}

// Like a log: what cannot be written is said, and training goes on.
void Trainer::write_trace() {
  const std::vector<RankTrace> traces = trace_->gather();
  if (!log_ || traces.empty()) return;
  const TraceWindow w = parse_trace_window(config_.log.trace_steps);
  const int64_t first = std::max(w.first, first_step_);
  const EngineOptions options = engine_options(config_, threads_);
  TraceInfo info;
  info.tokens = config_.train.micro_batch * config_.model.seq;
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

void Trainer::save(bool must) {
  mesh_->status().enter(RunPhase::kSave, state_.step);
  const double begin = now();
  state_.elapsed_seconds += begin - started_;
  started_ = begin;
  state_.origin = "train";
  state_.optim_type = config_.optim.type;
  state_.lr_type = config_.schedule.type;
  state_.global_batch = config_.train.global_batch;
  state_.micro_batch = config_.train.micro_batch;
  DataCursor cursor = train_data_->cursor(state_.consumed_samples);
  cursor.skip_windows = skip_windows_;
  state_.data_json = to_json(cursor);
  state_.bad_steps_json = guard_.json();
  std::vector<AuxFile> aux{{.name = "config.json", .path = "", .text = config_json(config_)}};
  if (!config_.data.tokenizer.empty())
    aux.push_back({.name = "tokenizer.model", .path = config_.data.tokenizer, .text = ""});
  saver_->save(state_, engine_->checkpoint_views(), std::move(aux), must);
  step_ended_ = now();
}

void Trainer::report_range(EndInfo& info) const {
  const std::string path = config_.run_dir() + "/lr_range.csv";
  std::ofstream file(path);
  file << "step,lr,loss\n";
  for (size_t i = 0; i < range_.size(); ++i) file << fmt::format("{},{},{}\n", i + 1, range_[i].lr, range_[i].loss);
  info.rows.push_back({"range test", path});
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

void Trainer::finish(Exit code) {
  const std::vector<CommRow> comm = comm_log_ ? comm_log_->rows() : std::vector<CommRow>();
  if (!log_) return;
  EndInfo info;
  if (comm_log_) {
    info.comm_json = comm_json(comm, comm_log_->steps());
    info.rows.push_back({"communication", comm_table(comm, comm_log_->steps(), mesh_->shape().world())});
  }
  info.reason = code == Exit::kOk ? "finished" : std::string("interrupted by a stop signal, everything is saved");
  info.exit_code = static_cast<int>(code);
  info.step = state_.step;
  info.tokens = state_.consumed_tokens;
  info.seconds = state_.elapsed_seconds + now() - started_;
  info.last_loss = last_loss_;
  info.best_loss = state_.best_step >= 0 ? state_.best_loss : kUnknown;
  if (recent_rates_.size() > 2) recent_rates_.erase(recent_rates_.begin(), recent_rates_.begin() + 2);
  info.median_tokens_per_second = median(recent_rates_);
  const std::string dir = config_.run_dir();
  info.rows.push_back({"total FLOPs", fmt::format("{:.3e}", gpt_config(config_).train_flops(state_.consumed_tokens))});
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
    info.next.push_back("the same command again resumes from step " + std::to_string(saver_->saved_step()));
  info.next.push_back("tensorboard --logdir " + dir);
  if (saver_->saved_step() >= 0) info.next.push_back("gpttrain generate --load " + dir + " --prompt \"…\"");
  log_->end(info);
}

}  // namespace gt
