#include "launch/train/trainer.h"

#include <fmt/format.h>

#include <limits>

#include "checkpoint/world.h"
#include "kernels/core/host.h"
#include "launch/config/config_curriculum.h"
#include "launch/engine/engine_options.h"
#include "launch/engine/gemm_plans.h"
#include "launch/ranks/agree.h"
#include "launch/ranks/alike.h"
#include "launch/ranks/one_folder.h"
#include "launch/ranks/signals.h"
#include "launch/train/training_data.h"

namespace gt {

Trainer::Trainer(const TrainRun& run, GroupFactory& factory)
    : run_(run),
      config_(run_.loaded.config),
      curriculum_(curriculum_of(config_)),
      device_(config_, factory),
      factory_(device_.groups()),
      backend_(&device_.backend()),
      guard_({config_.fault.spike_z, spike_action_from(config_.fault.spike_action), config_.fault.bad_steps,
              config_.fault.max_rollbacks, config_.optim.grad_clip > 0}),
      injector_(config_.fault.inject, factory.world_rank()),
      started_(now()) {
  mesh_ = std::make_unique<Mesh>(mesh_shape(config_), factory_);
  ProcessGroup& world = mesh_->world();
  const std::vector<std::string> hosts = gather_bytes(world, host_name());
  agree(world, [&] { open_device(hosts); });
  agree(world, [&] {
    if (!speaks()) return;
    open_run_folder();
    if (!run_.range_test) lock_folder();  // which saves nothing
  });
  if (!run_.range_test) require_one_folder(world, config_.checkpoint_dir());
  settle_gemm_plans(config_, engine_options(config_, threads_), *mesh_, *backend_, device_.index(), compute_,
                    config_.run_dir());
  agree(world, [&] { open_data(); });
  require_alike(world, data_traits(tokenizer_sha256_, *train_data_, valid_data_.get()));
  ops_ = std::make_unique<OpWatch>(*backend_);
  engine_ = std::make_unique<Engine>(engine_options(config_, threads_), *mesh_, ops_->backend(), compute_, plan_);
  require_fault_targets();
  saver_ = std::make_unique<RunSaver>(config_, *mesh_, *backend_, compute_);
  mesh_->status().set_step_limit(config_.comm.stall_warn_s);
  mesh_->status().enter(RunPhase::kLoad, 0);
  load_or_init();
  saver_->prepare(engine_->checkpoint_views(), snapshot_fits_, !run_.range_test);
  agree(world, [&] {
    if (!speaks()) return;
    if (!run_.range_test) require_disk_room();
    write_config();
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
}

Exit Trainer::run() {
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
    if (config_.fault.replica_check_every > 0 && state_.step % config_.fault.replica_check_every == 0) check_replicas();
    const bool last = state_.step == config_.train.steps;
    if (trace_ && trace_->wants(state_.step) && (last || stop_ || !trace_->wants(state_.step + 1))) write_trace();
    if (run_.range_test) {
      const bool look = state_.step % std::max<int64_t>(1, config_.train.steps / 100) == 0;
      if (look && has_diverged(range_)) break;
      continue;
    }
    if (config_.train.eval_every > 0 && (state_.step % config_.train.eval_every == 0 || last)) evaluate();
    report_memory();
    const int64_t every = config_.checkpoint.save_steps();
    if (last || stop_ || save_due_ || (every > 0 && state_.step % every == 0)) save(last || stop_);
  }
  saver_->finish();
  const bool done = state_.step >= config_.train.steps || (run_.range_test && !stop_);
  const auto lost = unsaved(done);  // the same on every rank
  const Exit code = lost ? lost->code() : done ? Exit::kOk : Exit::kInterrupted;
  finish(code, done);
  if (lost) throw AgreedError(lost->what(), code, speaks());
  if (code != Exit::kOk) return code;
  agree(mesh_->world(), [&] {
    const std::string unwritten = log_ ? log_->unwritten() : "";
    GT_REQUIRE(unwritten.empty(), Exit::kIo, "finished at step ", state_.step,
               ", but not all of its logs are written: ", unwritten);
  });
  return code;
}

// Every run ends with a checkpoint of its last step; nullopt: it is there, or no step was made.
std::optional<Error> Trainer::unsaved(bool done) const {
  if (run_.range_test || state_.step < first_step_ || saver_->saved_step() == state_.step) return std::nullopt;
  const auto& why = saver_->last_error();
  const std::string last = saver_->saved_step() < 0
                               ? std::string("there is none")
                               : fmt::format("the last good one is of step {}", saver_->saved_step());
  return Error(
      fmt::format("{} at step {}, but no checkpoint of it could be written; {}{}", done ? "finished" : "stopped",
                  state_.step, last, why ? fmt::format(": {}", why->what()) : ""),
      why ? why->code() : Exit::kIo);
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
  microbatches_ = loader_->next();
  const double ready = now(), waited_for_data = loader_->wait_seconds() - waited_before;
  engine_->set_data_wait(waited_for_data);
  if (comm_log_) comm_log_->begin_step();
  targets_ = target_tokens(*loader_, length());
  if (targets_ == 0 && log_)
    log_->warn(state_.step + 1,
               "a global batch without a target that carries loss (data.eod_mask_loss masks all of them): its loss and "
               "gradients are 0, while weight decay and the optimizer's averages act; look at the data, or raise "
               "train.global_batch");
  scale_before_ = engine_->loss_scaler().state();
  // On all ranks, whoever plants: collectives of a step are parts of graphs on all of them or on none.
  const bool plants = injector_.wants("forward", state_.step + 1) || injector_.wants("backward", state_.step + 1);
  if (plants) ops_->begin(engine_->store(), mesh_->status(), injector_.in_ops(state_.step + 1), false);
  if (profiles(state_.step + 1) && !plants) {
    module_timer_ = std::make_unique<ModuleTimer>();
    ops_->begin_timing(engine_->store(), *module_timer_);
  }
  const double step_began = now();
  const bool twice =
      config_.fault.recheck_every > 0 && (state_.step + 1) % config_.fault.recheck_every == 0 && !module_timer_;
  const StepResult r =
      twice ? step_twice() : engine_->step(microbatches_, targets_, {stop_requested(), saver_->ready(), saver_->due()});
  if (plants || module_timer_) ops_->end();
  if (comm_log_) comm_log_->end_step();
  stop_ = r.stop;
  save_due_ = r.save_due;
  ++state_.step;
  state_.skipped_steps += r.skipped;
  state_.applied_steps = engine_->applied_steps();
  state_.schedule_steps = engine_->schedule_steps();
  state_.applied_samples = engine_->applied_samples();
  if (const LossScaler& s = engine_->loss_scaler(); s.options().dynamic)
    state_.scaler = {s.state().scale, s.state().clean, s.state().hysteresis};
  state_.consumed_samples = loader_->consumed();
  state_.consumed_tokens += global_tokens(length());
  if (curriculum_) state_.curriculum = {length(), state_.curriculum->samples + config_.train.global_batch};
  if (engine_->options().layer_drop) state_.pld_theta = r.theta;
  state_.lr_value = r.lr;
  last_loss_ = r.loss;
  judge(r);
  skips_->after(r, state_.step, *engine_);
  state_.skips_in_a_row = skips_->in_a_row();
  if (trace_ && trace_->wants(state_.step))
    trace_->end_step(state_.step, engine_->executor(), engine_->phases(), ready, waited_for_data);
  saver_->after_step(r.save_ready);
  log_trust_ratios();
  if (module_timer_) report_flops(now() - step_began);
  if (run_.range_test) range_.push_back({r.lr, r.skipped ? std::numeric_limits<double>::infinity() : r.loss});
  if (!speaks()) return;
  const StepRecord rec = record_of(r);
  log_->push(rec);
  warn_of_eager_work();
  say_who_computes_attention();
  if (rec.step % config_.log.every == 0) say_where_time_and_memory_went(rec);
}

int64_t Trainer::target_tokens(const Loader& loader, int64_t length) const {
  return config_.data.eod_mask_loss ? gt::target_tokens(*mesh_, loader) : global_tokens(length);
}

void Trainer::evaluate() {
  const double begin = now();
  mesh_->status().enter(RunPhase::kEval, state_.step);
  eval_loader_->restore(0);
  double sum = 0;
  int64_t targets = 0;
  for (int64_t k = 0; k < config_.train.eval_steps; ++k) {
    sum += engine_->evaluate(eval_loader_->next());
    targets += target_tokens(*eval_loader_, config_.model.seq);
  }
  EvalRecord rec;
  rec.step = state_.step;
  rec.time = wall_seconds();
  rec.tokens = config_.train.eval_steps * global_tokens(config_.model.seq);
  rec.loss = sum / static_cast<double>(std::max<int64_t>(targets, 1));
  rec.seconds = now() - begin;
  if (state_.best_step < 0 || rec.loss < state_.best_loss) {
    state_.best_loss = rec.loss;
    state_.best_step = state_.step;
  }
  state_.eval_loss = rec.loss;
  state_.eval_step = state_.step;
  if (log_) log_->push(rec);
  step_ended_ = now();
}

void Trainer::save(bool must) {
  if (config_.fault.replica_check_every > 0) check_replicas();
  mesh_->status().enter(RunPhase::kSave, state_.step);
  injector_.at_save(state_.step);
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

}  // namespace gt
