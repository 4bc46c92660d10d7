#include "launch/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "kernels/core/host.h"
#include "kernels/core/out_of_memory.h"
#include "kernels/core/text.h"
#include "launch/config/values/param_groups.h"
#include "launch/engine/gemm_plans.h"
#include "launch/ranks/agree.h"
#include "launch/ranks/rank_consistency.h"
#include "launch/train/kept_files.h"
#include "launch/train/resume_check.h"

namespace gt {
namespace {

RunDatasets open_data(RankContext& rank) {
  const Config& c = rank.config;
  settle_gemm_plans(c, rank.options, rank.mesh, rank.backend, rank.device.index(), rank.stream, c.run_dir());
  RunDatasets data;
  agree(rank.mesh.world(), [&] {
    DatasetOptions o = training_data(c, rank.groups.local_rank() == 0);
    o.warn = [&rank](const std::string& text) {
      if (rank.is_rank0()) fmt::print(stderr, "warning: {}\n", printable_lines(text));
    };
    const auto& sources = o.sources;
    if (o.cache_dir.empty() && std::any_of(sources.begin(), sources.end(), [](auto& s) { return s.path != "mock"; }))
      o.warn(
          "no HOME and no XDG_CACHE_HOME: the order of samples is kept in memory, each rank builds it, and nothing is "
          "stored for later runs");
    data = open_datasets(o, rank.run.loaded);
  });
  require_consistent(rank.mesh.world(), data_traits(data.tokenizer_sha256, *data.train, data.valid.get()));
  return data;
}

// The step whose files belong to the weights: after a restart from copies in memory the newest on disk. "": none.
std::string source_of_weights(const Config& c, const std::optional<LoadReport>& loaded) {
  std::error_code ec;
  if (!loaded) return "";
  const std::vector<std::string>& parts = c.checkpoint.load;
  const bool elsewhere = !c.checkpoint.load_from.empty() && !loaded->path.starts_with(c.checkpoint_dir());
  if (elsewhere && !has_part(parts, "weights")) return "";
  if (std::filesystem::exists(loaded->path + "/manifest.json", ec)) return loaded->path;
  try {
    return resolve_step(c.checkpoint_dir());
  } catch (const Error&) { return ""; }
}

}  // namespace

Trainer::Trainer(const TrainRun& run, GroupFactory& factory)
    : run_(run),
      config_(run_.loaded.config),
      rank_(run_, factory),
      folder_(rank_, run_.force, !run_.range_test),
      data_(open_data(rank_)),
      ops_(rank_.backend),
      engine_(rank_.options, rank_.mesh, ops_.backend(), rank_.stream, rank_.plan),
      loader_(rank_, data_),
      state_(rank_, engine_, loader_),
      report_(rank_, engine_, ops_, loader_, state_),
      saver_(config_, rank_.mesh, rank_.backend, rank_.stream),
      faults_(rank_, engine_, ops_, loader_, state_, report_, saver_) {
  if (run_.range_test) range_test_.emplace();
  open();
}

void Trainer::open() {
  rank_.mesh.status().set_step_limit(config_.comm.stall_warn_s);
  rank_.mesh.status().enter(RunPhase::kLoad, 0);
  agree(rank_.mesh.world(), [&] {
    require_patterns_found(config_.optim, engine_.spec());
    report_.open_port();
  });
  copies_.emplace(rank_, engine_);
  state_.open(*copies_);
  open_kept_files();
  if (state_.resumed() && !state_.in_memory()) saver_.set_saved_step(state_->step);
  saver_.prepare(engine_.checkpoint_views(), rank_.snapshot_fits, !run_.range_test);
  folder_.begin(rank_, state_->step, run_.range_test ? -1 : saver_.checkpoint_bytes());
  faults_.begin();
  report_.start(run_.range_test ? "" : saver_.describe(), copies_->describe());
  saver_.set_log(report_.log());
  copies_->set_log(report_.log());
  saver_.set_lock(folder_.lock());
}

// Read once: a folder that is moved or changed while the run goes on does not stop its saves.
void Trainer::open_kept_files() {
  agree(rank_.mesh.world(), [&] {
    if (rank_.is_rank0()) kept_files_ = files_to_keep(config_, source_of_weights(config_, state_.loaded()));
  });
}

Exit Trainer::run() {
  const MemoryPurpose purpose("training");
  report_.restart_clock();
  if (finished() && state_.in_memory())
    save(true);
  else if (finished())
    report_.event(
        fmt::format("nothing to do: the run in {} is at step {} and train.steps is {}. Raise train.steps to continue; "
                    "another --log.name starts a new run",
                    config_.run_dir(), state_->step, config_.train.steps));
  while (!finished() && !stop_) {
    one_step();
    after_step();
    if (copies_->due(state_->step)) copies_->keep(state_.to_save(faults_.json(), faults_.consecutive_skips()));
    if (range_test_ && state_->step % std::max<int64_t>(1, config_.train.steps / 100) == 0 && range_test_->diverged())
      break;
  }
  saver_.finish();
  const bool done = finished() || (range_test_ && !stop_);
  const auto lost = unsaved(done);  // the same on every rank
  const Exit code = lost ? lost->code() : done ? Exit::kOk : Exit::kInterrupted;
  // Once the first rank has ended with 75, srun and torchrun send SIGTERM to the others, which may still be closing.
  if (code == Exit::kInterrupted) std::signal(SIGTERM, SIG_IGN);
  report_.finish({.code = code,
                  .done = done,
                  .saved_step = saver_.saved_step(),
                  .spikes_taken = faults_.spikes_taken(),
                  .range_test = range_test_ && rank_.is_rank0() ? range_test_->report(config_.run_dir()) : Rows()});
  if (lost) throw AgreedError(lost->what(), code, rank_.is_rank0());
  copies_->discard();
  if (code == Exit::kOk) agree(rank_.mesh.world(), [&] { report_.require_written(); });
  return code;
}

void Trainer::one_step() {
  const int64_t step = state_->step + 1;
  rank_.mesh.status().enter(step == state_.first_step() ? RunPhase::kFirstStep : RunPhase::kStep, step);
  faults_.begin_step();
  report_.begin_step(step);
  loader_.next();
  engine_.set_data_wait(loader_.step().waited);
  if (loader_.step().targets == 0)
    report_.warn(step,
                 "a global batch has no unmasked target (data.eod_mask_loss or the data's loss mask masks all): its "
                 "loss and gradients are 0, but "
                 "weight decay and the optimizer's moments still apply; check the data, or raise train.global_batch");
  const bool timed = !faults_.injects_into_ops() && report_.times_ops(step);
  const StepResult r = faults_.run_step(timed);
  report_.step_ran(step);
  stop_ = r.stop;
  save_due_ = r.save_due;
  state_.advance(r);
  faults_.check_step(r);
  saver_.after_step(r.save_ready);
  if (range_test_) range_test_->add(r);
  report_.end_step(r);
}

// Evaluates, saves and stops as configured, between two steps.
void Trainer::after_step() {
  const auto due = [&](int64_t every) { return every > 0 && state_->step % every == 0; };
  faults_.react();
  if (due(config_.fault.replica_check_every)) faults_.check_replicas();
  report_.between_steps(finished() || stop_);
  if (range_test_) return;
  if (due(config_.train.eval_every) || (config_.train.eval_every > 0 && finished())) evaluate();
  report_.after_evaluation();
  const bool last = finished() || stop_;
  if (last || save_due_ || due(config_.checkpoint.save_steps())) save(last);
}

void Trainer::evaluate() {
  const double begin = now();
  rank_.mesh.status().enter(RunPhase::kEval, state_->step);
  const MeanLoss loss = loader_.evaluate(engine_);
  state_.evaluated(loss.sum());
  report_.evaluated(loss, now() - begin);
  report_.restart_clock();
}

void Trainer::save(bool must) {
  if (config_.fault.replica_check_every > 0) faults_.check_replicas();
  rank_.mesh.status().enter(RunPhase::kSave, state_->step);
  faults_.inject_at_save();
  std::vector<AuxFile> aux{{.name = "config.json", .path = "", .text = config_json(config_)}};
  aux.insert(aux.end(), kept_files_.begin(), kept_files_.end());
  saver_.save(state_.to_save(faults_.json(), faults_.consecutive_skips()), engine_.checkpoint_views(), std::move(aux),
              must);
  report_.restart_clock();
}

// Every run ends with a checkpoint of its last step; nullopt: it exists, or no step was made.
std::optional<Error> Trainer::unsaved(bool done) const {
  const bool nothing_new = state_->step < state_.first_step() && !state_.in_memory();
  if (range_test_ || nothing_new || saver_.saved_step() == state_->step) return std::nullopt;
  const auto& why = saver_.last_error();
  const std::string last = saver_.saved_step() < 0
                               ? std::string("there is none")
                               : fmt::format("the newest valid one is of step {}", saver_.saved_step());
  return Error(
      fmt::format("{} at step {}, but no checkpoint of it could be written; {}{}", done ? "finished" : "stopped",
                  state_->step, last, why ? fmt::format(": {}", why->what()) : ""),
      why ? why->code() : Exit::kIo);
}

}  // namespace gt
