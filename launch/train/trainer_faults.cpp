// What the trainer does about bad steps (step_guard.h): names what is not finite, goes back to an older checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "checkpoint/steps.h"
#include "checkpoint/world.h"
#include "kernels/core/host.h"
#include "launch/engine/replica_check.h"
#include "launch/ranks/agree.h"
#include "launch/ranks/signals.h"
#include "launch/train/resume_check.h"
#include "launch/train/trainer.h"
#include "parallel/zero/shard_copy.h"

namespace gt {
namespace {

constexpr int64_t kNameAtMost = 3;    // times a run: a look at every value takes longer than a step
constexpr int64_t kSpikesAtMost = 3;  // that get a line of their own; all are counted in the end block
constexpr int64_t kStepsBefore = 100;  // a checkpoint so much older than the bad steps is taken for good

// "gradient of layers.1.mlp.up.weight, element 17, is nan"; the first view that holds one, "" when none does.
std::string first_bad_value(const std::vector<ShardView>& views, const char* what, const Backend& backend,
                            Stream stream) {
  std::vector<float> host;
  for (const ShardView& v : views) {
    if (!v.save) continue;
    host.resize(static_cast<size_t>(v.data.numel()));
    fetch_view(v, host.data(), backend, stream);
    const auto bad = std::find_if(host.begin(), host.end(), [](float x) { return !std::isfinite(x); });
    if (bad == host.end()) continue;
    return fmt::format("{} of {}, element {}, is {}", what, v.name.substr(v.name.find('/') + 1),
                       logical_offset(v, v.begin + (bad - host.begin())), *bad);
  }
  return "";
}

StepLimits leave_out() { return {.most = -StepLimits::kInfinity}; }  // whatever it is: no update

}  // namespace

void Trainer::watch_steps() {
  if (run_.range_test) return;  // it wants to see the loss diverge
  engine_->set_limits([this] { return guard_.limits(); });
  if (!config_.fault.inject.empty())
    engine_->set_probe([this] {
      const int64_t batch = loader_->consumed() / config_.train.global_batch;
      if (injector_.wants("grad", batch))
        injector_.at_tensors("grad", batch, engine_->store().grad_views(), *backend_, compute_);
    });
}

// The device has judged the step by the guard's limits already; now the guard learns of it.
void Trainer::judge(const StepResult& r) {
  if (run_.range_test) return;
  // A replica that is not finite skips the step as well, and no norm tells.
  const double norm = r.overflow ? std::numeric_limits<double>::quiet_NaN() : r.grad_norm;
  const bool left_out = guard_.judge(r.loss, norm, engine_->loss_scaler().options().dynamic || r.loss_scale != 1);
  GT_CHECK(left_out == r.skipped, "step ", state_.step, ": loss ", r.loss, " and norm ", norm, " were ",
           r.skipped ? "left out" : "taken", " against the guard's judgement: ", guard_.reason());
}

// Collective. Runs the step again, writes nothing, looks at the result of every op: which is the first that is not
// finite? Of several ranks the one that made such a value of finite ones, in the least microbatch, at the earliest time.
std::string Trainer::name_first_bad_op() {
  engine_->set_limits(leave_out);
  LossScaler& scaler = engine_->loss_scaler();
  const LossScaleState scale = scaler.state();
  if (scaler.options().dynamic) scaler.restore(scale_before_);
  ops_->begin(engine_->store(), mesh_->status(), injector_.in_ops(state_.step), true);
  const StepResult again = engine_->step(microbatches_, targets_);
  ops_->end();
  if (scaler.options().dynamic) scaler.restore(scale);
  watch_steps();
  std::string key, text;
  if (const auto& bad = ops_->first_bad()) {
    const int64_t b = config_.train.micro_batch, k = static_cast<int32_t>(bad->where);
    const int64_t first = state_.consumed_samples - config_.train.global_batch +
                          (k * mesh_->size(Axis::kDp) + mesh_->coord(Axis::kDp)) * b;
    key = fmt::format("{}{:010}{:020}", bad->made_here ? 0 : 1, bad->where == kNowhere ? 0 : k, bad->time);
    text = fmt::format("; the first op whose result is not finite: {} (rank {}, {}", bad->text, mesh_->rank(),
                       mesh_->place());
    text += bad->where == kNowhere ? ")"
                                   : fmt::format(", stage {}, microbatch {}, samples {} to {})", bad->where >> 32, k,
                                                 first, first + b - 1);
  }
  std::string least;
  for (const std::string& one : gather_bytes(mesh_->world(), pack({key, text}))) {
    const auto found = unpack(one);
    if (!found[0].empty() && (least.empty() || found[0] < least)) least = found[0], text = found[1];
  }
  if (!least.empty()) return text;
  return std::isfinite(again.loss) && std::isfinite(again.grad_norm) && !again.overflow
             ? "; run again, the same step is finite: a fault of memory or of a processor is likely"
             : "; every op of the step gave finite results, so these values came after it";
}

// Collective. The first values that are not finite: losses by microbatch, which all ranks know; then weights, which
// explain everything else; else gradients, the first in the order of the backward.
std::string Trainer::name_bad_values() {
  if (++named_ > kNameAtMost) return "";
  std::string text = name_first_bad_op();
  const auto dp = static_cast<size_t>(mesh_->size(Axis::kDp));
  const std::span<const double> losses = engine_->microbatch_losses();
  for (size_t i = 0; i < losses.size(); ++i) {
    if (std::isfinite(losses[i])) continue;
    const int64_t b = config_.train.micro_batch,
                  first = state_.consumed_samples - config_.train.global_batch + static_cast<int64_t>(i) * b;
    text += fmt::format("; the loss of microbatch {} of dp rank {} (samples {} to {}) is {}", i / dp, i % dp, first,
                        first + b - 1, losses[i]);
    break;
  }
  const auto gradient = engine_->store().first_bad_gradient();
  std::vector<ShardView> views = engine_->store().grad_views();
  std::erase_if(views, [&](const ShardView& v) { return !gradient || v.name != "grad/" + gradient->name; });
  std::string own = first_bad_value(views, "gradient", *backend_, compute_);
  if (own.empty() && gradient) own = "gradient of " + gradient->name + ", in this rank's replica";
  const std::vector<std::string> all = gather_bytes(
      mesh_->world(), pack({first_bad_value(engine_->store().value_views(), "weight", *backend_, compute_),
                            own,
                            fmt::format("{:020}", gradient ? gradient->place : 0)}));
  for (const size_t kind : {0, 1}) {
    int speaker = -1, ranks = 0;
    std::string place;
    for (int r = 0; r < static_cast<int>(all.size()); ++r) {
      const auto found = unpack(all[static_cast<size_t>(r)]);
      if (found[kind].empty()) continue;
      ++ranks;
      if (speaker < 0 || (kind == 1 && found[2] < place)) speaker = r, place = found[2];
    }
    if (speaker < 0) continue;
    return text + fmt::format("; {} (rank {}, {}{})", unpack(all[static_cast<size_t>(speaker)])[kind], speaker,
                              mesh_->shape().place(speaker),
                              ranks > 1 ? fmt::format("; {} ranks have such values", ranks) : "");
  }
  return text;
}

void Trainer::react_to_bad_step() {
  if (!guard_.bad()) return;
  const std::string who = guard_.finite() ? "" : name_bad_values();
  const bool taken = !guard_.skipped();
  if (log_ && (!taken || ++spikes_reported_ <= kSpikesAtMost))
    log_->push(make_event(state_.step,
                          fmt::format("step {}{}: {}{}{}", state_.step, taken ? "" : ", its update is left out",
                                      guard_.reason(), taken && !guard_.relearns() ? "; its update is taken" : "", who),
                          true));
  if (guard_.wants_rollback()) roll_back();
}

// Collective. Damage that no file format sees: before it is saved, and now and then.
void Trainer::check_replicas() {
  if (replicas_checked_ == state_.step || run_.range_test) return;
  const bool first = replicas_checked_ < 0;
  for (const UpdateRange& range : engine_->store().ranges())
    if (range.rounded() && injector_.wants("value", state_.step)) {
      injector_.at_value(state_.step, range.value.data, *backend_->device, compute_);
      break;
    }
  replicas_checked_ = state_.step;
  agree(mesh_->world(), [&] {
    const std::string wrong = first_wrong_rounding(*engine_, *backend_, compute_);
    GT_REQUIRE(wrong.empty(), Exit::kHardware, "step ", state_.step, ": rank ", mesh_->rank(), " (", host_name(), ", ",
               mesh_->place(), "): ", wrong, " is not its rounded master. A fault of memory or of a processor is likely; "
               "nothing of it was saved: go on elsewhere from the newest checkpoint");
  });
  const std::string covered = require_equal_replicas(*engine_, *backend_->device, compute_, state_.step);
  if (log_ && first && mesh_->shape().world() > 1) log_->push(make_event(state_.step, covered));
}

// The step, after a run of it that updates nothing: both must have the same gradients.
StepResult Trainer::step_twice() {
  LossScaler& scaler = engine_->loss_scaler();
  const LossScaleState scale = scaler.state();
  engine_->set_limits(leave_out);
  engine_->set_probe({});
  engine_->step(microbatches_, targets_);
  if (scaler.options().dynamic) scaler.restore(scale);
  const std::vector<uint32_t> once = gradient_crcs(*engine_, *backend_->device, compute_);
  watch_steps();
  const StepResult r = engine_->step(microbatches_, targets_, {stop_requested(), saver_->ready(), saver_->due()});
  require_equal_gradients(*engine_, once, gradient_crcs(*engine_, *backend_->device, compute_), state_.step + 1);
  return r;
}

// Rank 0: the newest step that is old enough, else the oldest; -1: there is none below `below`.
int64_t Trainer::rollback_target(int64_t below) {
  int64_t oldest = -1;
  for (const auto& [step, path] : list_steps(config_.checkpoint_dir())) {  // newest first
    if (step >= below) continue;
    if (step <= state_.step - kStepsBefore) return step;
    oldest = step;
  }
  return oldest;
}

void Trainer::roll_back() {
  ProcessGroup& world = mesh_->world();
  const int64_t bad_step = state_.step, global_batch = config_.train.global_batch;
  const auto window = skip_window(state_.consumed_samples - global_batch, global_batch, config_.fault.skip_batches);
  const std::string why = guard_.reason();
  saver_->finish();  // what is being written was good
  const bool allowed = guard_.count_rollback();
  agree(world, [&] {
    GT_REQUIRE(allowed, Exit::kNumerical, "step ", bad_step, ": ", why, "; the run has gone back ",
               config_.fault.max_rollbacks, " times already (fault.max_rollbacks) without 1000 good steps in a row. A "
               "lower --optim.lr, a longer warm-up or a look at the data may help; fault.spike_z says what a spike is");
  });
  mesh_->status().enter(RunPhase::kLoad, bad_step);
  std::string failures;
  std::optional<LoadReport> report;
  for (int64_t target = bad_step; !report;) {
    agree(world, [&] {
      if (mesh_->rank() == 0) target = rollback_target(target);
      GT_REQUIRE(mesh_->rank() != 0 || target >= 0, Exit::kNumerical, "step ", bad_step, ": ", why,
                 "; there is no checkpoint to go back to", failures,
                 ". A lower --optim.lr, a longer warm-up or a look at the data may help; --checkpoint.every saves more "
                 "often; --fault.spike_action warn lets finite spikes pass");
    });
    target = std::stoll(broadcast_bytes(world, std::to_string(target), 0));
    try {
      report = load_checkpoint(
          config_.checkpoint_dir(), std::to_string(target), engine_->checkpoint_views(), *mesh_, *backend_->device,
          compute_, [this](const LoadReport& found) { require_same_run(found, config_, *train_data_); }, fit_options());
    } catch (const Error& e) {  // the same on every rank
      if (e.code() != Exit::kDamaged && e.code() != Exit::kIo) throw AgreedError(e.what(), e.code(), speaks());
      failures += cat("\n  ", e.what());
    }
  }
  const double elapsed = state_.elapsed_seconds;
  go_on_from(report->state);
  state_.elapsed_seconds = elapsed;
  guard_.restore(state_.bad_steps_json, true);
  skips_ = std::make_unique<SkipWatch>(config_.precision.max_consecutive_skips, state_.skips_in_a_row);
  skip_windows_.push_back(window);
  open_loader();
  if (!log_) return;
  for (const std::string& w : report->warnings) log_->warn(state_.step, w);
  log_->push(make_event(
      state_.step, fmt::format("went back from step {} to step {} (rollback {} of {}): {}; batches {} to {} are left out",
                               bad_step, state_.step, guard_.rollbacks(), config_.fault.max_rollbacks, why,
                               window.first / global_batch, (window.second - 1) / global_batch),
      true));
  step_ended_ = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace gt
