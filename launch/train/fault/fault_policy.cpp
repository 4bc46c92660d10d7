#include "launch/train/fault/fault_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "checkpoint/store/steps.h"
#include "checkpoint/world.h"
#include "kernels/core/host.h"
#include "launch/engine/replica_check.h"
#include "launch/options/near_word.h"
#include "launch/ranks/agree.h"
#include "launch/train/fault/bad_values.h"

namespace gt {
namespace {

constexpr int64_t kNameAtMost = 3;     // per run: checking every value takes longer than a step
constexpr int64_t kSpikesAtMost = 3;   // spikes with a line of their own; the end block counts all
constexpr int64_t kStepsBefore = 100;  // a checkpoint this much older than the anomalous steps is considered good

GuardOptions guard_options(const Config& c) {
  GuardOptions o = c.fault;
  o.clipped = c.optim.grad_clip > 0;
  return o;
}

}  // namespace

FaultPolicy::FaultPolicy(const RankContext& rank, Engine& engine, OpWatch& ops, RunLoader& loader, RunState& state,
                         RunReporter& report, RunSaver& saver)
    : rank_(rank),
      config_(rank.config),
      engine_(engine),
      ops_(ops),
      loader_(loader),
      state_(state),
      report_(report),
      saver_(saver),
      guard_(guard_options(config_)),
      injector_(config_.fault.inject, rank.mesh.rank()) {
  require_targets();
}

// Rejects faults at a tensor that no rank has: they would never occur.
void FaultPolicy::require_targets() const {
  const std::vector<std::string> requested = injector_.params();
  if (requested.empty()) return;
  std::vector<std::string> own, known;
  for (const auto& t : engine_.store().tensors()) own.push_back(t->name);
  for (const std::string& rank : gather_bytes(rank_.mesh.world(), pack(own)))
    for (std::string& name : unpack(rank)) known.push_back(std::move(name));
  agree(rank_.mesh.world(), [&] {
    for (const std::string& name : requested) {
      const std::string guess = did_you_mean(name, known);
      GT_REQUIRE(std::find(known.begin(), known.end(), name) != known.end(), Exit::kUsage, "fault.inject: param=", name,
                 ": no tensor of that name",
                 guess.empty() ? "; names are those of `gpttrain ckpt inspect`, such as " + known[0]
                               : "; did you mean " + guess + "?");
    }
  });
}

void FaultPolicy::begin() {
  agree(rank_.mesh.world(), [&] {
    try {
      guard_.restore(state_->anomaly_json);
    } catch (const Error& e) { fail(e.code(), state_.loaded()->path, "/manifest.json: state: bad_steps: ", e.what()); }
  });
  skips_ = std::make_unique<SkipWatch>(config_.precision.max_consecutive_skips, state_->consecutive_skips);
  watch_steps();
}

void FaultPolicy::watch_steps() {
  engine_.set_limits({});
  if (rank_.run.range_test) return;  // the test needs the divergence
  engine_.set_limits([this] { return guard_.limits(); });
  if (config_.fault.inject.empty()) return;
  engine_.set_update_hook([this] {
    const int64_t batch = loader_.consumed() / config_.train.global_batch;
    if (injector_.configured("grad", batch))
      injector_.at_tensors("grad", batch, engine_.store().grad_views(), rank_.backend, rank_.stream);
  });
}

void FaultPolicy::begin_step() {
  const int64_t step = state_->step + 1;
  injector_.at_step(step);
  if (!injector_.configured("master", step)) return;
  injector_.at_tensors("master", step, engine_.store().value_views(), rank_.backend, rank_.stream);
  engine_.store().refresh_from_masters();
}

// Equal on all ranks, whichever injects: collectives must be part of a graph on all ranks or on none.
bool FaultPolicy::injects_into_ops() const {
  return injector_.configured("forward", state_->step + 1) || injector_.configured("backward", state_->step + 1);
}

StepResult FaultPolicy::run_step(bool once) {
  const int64_t step = state_->step + 1;
  const bool injects = injects_into_ops();
  const auto run = [&] { return engine_.step(loader_.step().microbatches, loader_.step().targets, saver_.requests()); };
  scale_before_ = engine_.loss_scaler().state();
  if (injects) ops_.begin(engine_.store(), rank_.mesh.status(), injector_.in_ops(step), false);
  StepResult r;
  if (!once && config_.fault.recheck_every > 0 && step % config_.fault.recheck_every == 0) {
    const auto crcs = [&] { return gradient_crcs(engine_, *rank_.backend.device, rank_.stream); };
    engine_.set_update_hook({});
    run_without_update();
    const std::vector<uint32_t> first = crcs();
    r = run();
    require_equal_gradients(engine_, first, crcs(), step);
  } else {
    r = run();
  }
  if (injects) ops_.end();
  return r;
}

// Runs the step again with the previous loss scale. Skips its update and restores the loss scale.
StepResult FaultPolicy::run_without_update() {
  LossScaler& scaler = engine_.loss_scaler();
  const LossScaleState scale = scaler.state();
  engine_.set_limits([] { return StepLimits{.most = -StepLimits::kInfinity}; });
  if (scaler.options().dynamic) scaler.restore(scale_before_);
  const StepResult r = engine_.step(loader_.step().microbatches, loader_.step().targets);
  if (scaler.options().dynamic) scaler.restore(scale);
  watch_steps();
  return r;
}

// The device has already applied the guard's limits to the step; updates the guard's state alike.
void FaultPolicy::check_step(const StepResult& r) {
  if (!rank_.run.range_test) {
    // A replica with non-finite values skips the step too, which no norm reveals.
    const double norm = r.overflow ? std::numeric_limits<double>::quiet_NaN() : r.grad_norm;
    const bool left_out = guard_.check(r.loss, norm, engine_.loss_scaler().options().dynamic || r.loss_scale != 1);
    GT_CHECK(left_out == r.skipped, "step ", state_->step, ": loss ", r.loss, " and norm ", norm, " were ",
             r.skipped ? "left out" : "taken", " against the guard's judgement: ", guard_.reason());
  }
  skips_->after(r, state_->step, engine_);
}

void FaultPolicy::react() {
  if (!guard_.bad()) return;
  const std::string who = guard_.finite() ? "" : name_bad_values();
  const bool taken = !guard_.skipped();
  if (report_.log() && (!taken || ++spikes_reported_ <= kSpikesAtMost))
    report_.event(fmt::format("step {}{}: {}{}{}", state_->step, taken ? "" : ", its update is skipped",
                              guard_.reason(), taken && !guard_.relearns() ? "; its update is applied" : "", who),
                  true);
  if (guard_.needs_rollback()) roll_back();
}

// Collective. Runs the step again and checks the result of every op.
std::string FaultPolicy::name_bad_values() {
  if (++named_ > kNameAtMost) return "";
  ops_.begin(engine_.store(), rank_.mesh.status(), injector_.in_ops(state_->step), true);
  const StepResult again = run_without_update();
  ops_.end();
  const int64_t first = state_->consumed_samples - config_.train.global_batch;
  const std::string op = name_first_bad_op(rank_, ops_.first_bad(), again, first);
  return op + gt::name_bad_values(rank_, engine_, first);
}

void FaultPolicy::check_replicas() {
  const int64_t step = state_->step;
  if (replicas_checked_ == step || rank_.run.range_test) return;
  const bool first = replicas_checked_ < 0;
  replicas_checked_ = step;
  for (const TensorRange& range : engine_.store().ranges())
    if (range.rounded() && injector_.configured("value", step)) {
      injector_.at_value(step, range.value.data, *rank_.backend.device, rank_.stream);
      break;
    }
  agree(rank_.mesh.world(), [&] {
    const std::string wrong = first_wrong_rounding(engine_, rank_.backend, rank_.stream);
    GT_REQUIRE(wrong.empty(), Exit::kHardware, "step ", step, ": rank ", rank_.mesh.rank(), " (", host_name(), ", ",
               rank_.mesh.coordinates(), "): ", wrong,
               " is not its rounded master weight. Likely a memory or processor fault; none of this was saved: resume "
               "on other hardware from the newest checkpoint");
  });
  const std::string covered = require_equal_replicas(engine_, *rank_.backend.device, rank_.stream, step);
  if (first && rank_.mesh.shape().world() > 1) report_.event(covered);
}

// Rank 0: returns the newest step that is old enough, else the oldest; -1: none before `below`.
int64_t FaultPolicy::rollback_target(int64_t below) const {
  int64_t oldest = -1;
  for (const auto& [step, path] : list_steps(config_.checkpoint_dir())) {  // newest first
    if (step >= below) continue;
    if (step <= state_->step - kStepsBefore) return step;
    oldest = step;
  }
  return oldest;
}

// Loads the newest checkpoint that is old enough and readable.
LoadReport FaultPolicy::load_older(const std::string& why) {
  ProcessGroup& world = rank_.mesh.world();
  const int64_t bad_step = state_->step;
  std::string failures;
  for (int64_t target = bad_step;;) {
    agree(world, [&] {
      if (rank_.is_rank0()) target = rollback_target(target);
      GT_REQUIRE(!rank_.is_rank0() || target >= 0, Exit::kNumerical, "step ", bad_step, ": ", why,
                 "; there is no checkpoint to roll back to", failures,
                 ". Try a lower --optim.lr or a longer warm-up, or check the data; --checkpoint.every saves more "
                 "often; --fault.spike_action warn applies finite spikes");
    });
    target = std::stoll(broadcast_bytes(world, std::to_string(target), 0));
    try {
      return *state_.load(std::to_string(target));
    } catch (const Error& e) {  // the same on every rank
      if (e.code() != Exit::kDamaged && e.code() != Exit::kIo) throw AgreedError(e.what(), e.code(), rank_.is_rank0());
      failures += cat("\n  ", e.what());
    }
  }
}

void FaultPolicy::roll_back() {
  const int64_t bad_step = state_->step, global_batch = config_.train.global_batch, most = config_.fault.max_rollbacks;
  const auto window = skip_window(state_->consumed_samples - global_batch, global_batch, config_.fault.skip_batches);
  const std::string why = guard_.reason();
  saver_.finish();  // pending saves contain good state
  const bool allowed = guard_.count_rollback();
  agree(rank_.mesh.world(), [&] {
    GT_REQUIRE(allowed, Exit::kNumerical, "step ", bad_step, ": ", why, "; the run has rolled back ", most,
               " times already (fault.max_rollbacks) without 1000 consecutive normal steps. Try a lower --optim.lr or "
               "a longer warm-up, or check the data; fault.spike_z sets the spike threshold");
  });
  rank_.mesh.status().enter(RunPhase::kLoad, bad_step);
  const LoadReport report = load_older(why);
  state_.return_to(report.state, window);
  saver_.set_saved_step(state_->step);
  guard_.restore(state_->anomaly_json, true);
  skips_ = std::make_unique<SkipWatch>(config_.precision.max_consecutive_skips, state_->consecutive_skips);
  report_.warn_all(report.warnings);
  report_.event(fmt::format("rolled back from step {} to step {} (rollback {} of {}): {}; batches {} to {} are skipped",
                            bad_step, state_->step, guard_.rollbacks(), most, why, window.first / global_batch,
                            (window.second - 1) / global_batch),
                true);
  report_.restart_clock();
}

}  // namespace gt
