// What a run takes over from a checkpoint: its own, whole; or parts of another one.
#include "checkpoint/world.h"
#include "launch/ranks/agree.h"
#include "launch/train/resume_check.h"
#include "launch/train/trainer.h"
#include "launch/train/training_data.h"

namespace gt {
namespace {

// The state of a run that begins with some of another's.
TrainState part_of(const TrainState& from, const std::vector<std::string>& parts) {
  TrainState s;
  if (has_part(parts, "optim")) {
    s.applied_steps = from.applied_steps;
    s.scaler = from.scaler;
  }
  if (has_part(parts, "schedule")) {
    s.step = from.step;
    s.schedule_steps = from.schedule_steps;
    s.applied_samples = from.applied_samples;
    s.skipped_steps = from.skipped_steps;
    s.lr_type = from.lr_type;
    s.lr_value = from.lr_value;
  }
  if (has_part(parts, "data")) {
    s.consumed_samples = from.consumed_samples;
    s.consumed_tokens = from.consumed_tokens;
    s.data_json = from.data_json;
  }
  if (parts.front() != "all") return s;
  s.skips_in_a_row = from.skips_in_a_row;
  s.best_loss = from.best_loss;
  s.best_step = from.best_step;
  s.bad_steps_json = from.bad_steps_json;
  s.carry = from.carry;
  s.curriculum = from.curriculum;
  return s;
}

}  // namespace

FitOptions Trainer::fit_options() const {
  return {config_.checkpoint.allow_missing, config_.checkpoint.allow_extra, config_.checkpoint.read_once};
}

// Collective. Reads the parts that checkpoint.load names from checkpoint.load_from, which stays as it is; the rest of
// the run is fresh.
std::optional<LoadReport> Trainer::start_from_elsewhere() {
  const std::vector<std::string>& parts = config_.checkpoint.load;
  std::string step;
  agree(mesh_->world(), [&] {
    if (speaks()) step = resolve_step(config_.checkpoint.load_from);
  });
  step = broadcast_bytes(mesh_->world(), step, 0);
  std::vector<ShardView> views = engine_->checkpoint_views();
  std::erase_if(views, [&](const ShardView& v) {
    return !has_part(parts, v.name.rfind("optim/", 0) == 0 ? "optim" : "weights");
  });
  std::optional<LoadReport> report;
  agree(mesh_->world(), [&] {
    report = load_step(
        step, views, *mesh_, *backend_->device, compute_,
        [&](const LoadReport& found) { require_same_run(found, config_, *train_data_, parts); }, fit_options());
  });
  TrainState state = part_of(report->state, parts);
  state.run_uuid = shared_uuid(mesh_->world());
  state.seed = static_cast<uint64_t>(config_.train.seed);
  report->state = state;
  return report;
}

}  // namespace gt
