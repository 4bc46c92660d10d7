// What a run takes over from a checkpoint: its own, whole; or parts of another one.
#include <algorithm>

#include "checkpoint/world.h"
#include "launch/ranks/agree.h"
#include "launch/train/trainer.h"

namespace gt {
namespace {

bool has(const std::vector<std::string>& parts, const std::string& part) {
  return std::find(parts.begin(), parts.end(), part) != parts.end() || parts.front() == "all";
}

// Does a changed key matter to what is taken? Lines of changed_keys() begin with the key.
bool matters(const std::string& line, const std::vector<std::string>& parts) {
  if (parts.front() == "all") return true;
  const auto in = [&](const char* section) { return line.rfind(section, 0) == 0; };
  return (in("model.") && has(parts, "weights") && line.find("dropout") == std::string::npos) ||
         (in("optim.") && has(parts, "optim")) || (in("schedule.") && has(parts, "schedule"));
}

// The state of a run that begins with some of another's.
TrainState part_of(const TrainState& from, const std::vector<std::string>& parts) {
  TrainState s;
  if (has(parts, "optim")) {
    s.applied_steps = from.applied_steps;
    s.scaler = from.scaler;
  }
  if (has(parts, "schedule")) {
    s.step = from.step;
    s.schedule_steps = from.schedule_steps;
    s.applied_samples = from.applied_samples;
    s.skipped_steps = from.skipped_steps;
    s.lr_type = from.lr_type;
    s.lr_value = from.lr_value;
  }
  if (has(parts, "data")) {
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

// What a checkpoint must have in common with this run beside its tensors. Weights from elsewhere bring no data.
void Trainer::accept(const LoadReport& found, const std::vector<std::string>& wanted) const {
  const auto changed = found.config_json.empty()
                           ? std::vector<std::string>()
                           : changed_keys(found.config_json, config_, config_.checkpoint.allow_change);
  const std::vector<std::string> parts = found.state.origin == "import" ? std::vector<std::string>{"weights"} : wanted;
  std::string text;
  for (const std::string& line : changed)
    if (matters(line, parts)) text += "\n  " + line;
  GT_REQUIRE(text.empty(), Exit::kUsage, found.path, ": this run would not go on as the checkpoint's did:", text,
             "\nRestore these settings, allow them by name (--checkpoint.allow_change optim.lr, or a whole section), "
             "or start a new run with another --log.name");
  if (has(parts, "data"))
    require_same_stream(data_cursor_from_json(found.state.data_json), train_data_->cursor(found.state.consumed_samples),
                        config_.data.allow_change);
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
  std::erase_if(views,
                [&](const ShardView& v) { return !has(parts, v.name.rfind("optim/", 0) == 0 ? "optim" : "weights"); });
  std::optional<LoadReport> report;
  agree(mesh_->world(), [&] {
    report = load_step(
        step, views, *mesh_, *backend_->device, compute_, [&](const LoadReport& found) { accept(found, parts); },
        fit_options());
  });
  TrainState state = part_of(report->state, parts);
  state.run_uuid = shared_uuid(mesh_->world());
  state.seed = static_cast<uint64_t>(config_.train.seed);
  report->state = state;
  return report;
}

}  // namespace gt
