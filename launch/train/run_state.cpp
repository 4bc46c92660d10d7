#include "launch/train/run_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/step_reader.h"
#include "checkpoint/world.h"
#include "kernels/core/host.h"
#include "launch/config/config_optim.h"
#include "launch/ranks/agree.h"
#include "launch/train/resume_check.h"
#include "parallel/comm/host_values.h"

namespace gt {
namespace {

// Returns the initial state of a run that takes over `parts` of another's.
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
  s.consecutive_skips = from.consecutive_skips;
  s.best_loss = from.best_loss;
  s.best_step = from.best_step;
  s.anomaly_json = from.anomaly_json;
  s.carry = from.carry;
  s.curriculum = from.curriculum;
  return s;
}

// Returns train.steps of a checkpoint's config; 0: unknown.
int64_t steps_of(const std::string& config_json) {
  if (config_json.empty()) return 0;
  const JsonValue json = parse_json(config_json, "config.json of the checkpoint");
  const JsonValue* train = json.find("train");
  const JsonValue* steps = train != nullptr ? train->find("steps") : nullptr;
  int64_t n = 0;
  return steps != nullptr && parse_int(steps->text, n) ? n : 0;
}

// Whether the frozen weights of a step are int8 codes.
bool holds_int8(const std::string& step) {
  Vfs vfs;
  const StepReader reader(vfs, step);
  const std::vector<TensorEntry>& all = reader.manifest().tensors;
  return std::any_of(all.begin(), all.end(), [](const TensorEntry& t) { return t.dtype == DType::kI8; });
}

// Another run's weights may lack this run's adapters.
FitOptions fit_options_elsewhere(const Config& c, const ModelSpec& spec) {
  FitOptions out = c.checkpoint;
  for (const ParamSpec& p : spec.params)
    if (c.model.lora.rank > 0 && !p.frozen) out.allow_missing.push_back("master/" + p.name);
  return out;
}

}  // namespace

RunState::RunState(const RankContext& rank, Engine& engine, RunLoader& loader)
    : rank_(rank), config_(rank.config), engine_(engine), loader_(loader), started_(rank.started) {}

void RunState::open(RunCopies& copies) {
  const CheckpointConfig& c = config_.checkpoint;
  ProcessGroup& world = rank_.mesh.world();
  if (!c.allow_missing.empty() || !c.load_from.empty()) engine_.init_weights();  // initializes what is not loaded
  loaded_ = load_copies(copies);
  in_memory_ = loaded_.has_value();
  if (!in_memory_ && c.resume != "never") {
    agree(world, [&] {
      if (rank_.is_rank0()) require_same_kind(config_);
    });
    agree(world, [&] { loaded_ = load(c.resume); });
  }
  resumed_ = loaded_.has_value();
  if (resumed_ && !c.load_from.empty()) check_unused_load_from();
  if (!resumed_ && !c.load_from.empty()) loaded_ = load_elsewhere();
  if (loaded_) {
    continue_from(loaded_->state);
    note_changes();
  } else {
    engine_.init_weights();
    begin_curriculum();
    state_.run_uuid = shared_uuid(world);
    state_.seed = static_cast<uint64_t>(config_.train.seed);
  }
  first_step_ = state_.step + 1;
  loader_.open(state_);
}

std::optional<LoadReport> RunState::load(const std::string& which) const {
  const std::string imported = imported_floats();
  if (!imported.empty()) return load_floats(imported, engine_.checkpoint_views(), {"all"}, config_.checkpoint);
  return load_checkpoint(
      config_.checkpoint_dir(), which, engine_.checkpoint_views(), rank_.mesh, *rank_.backend.device, rank_.stream,
      [this](const LoadReport& found) { require_same_run(found, config_, *loader_.data().train); }, config_.checkpoint);
}

std::optional<LoadReport> RunState::load_copies(RunCopies& copies) {
  std::string note;
  auto found = copies.restore(note);
  if (!note.empty()) notes_.push_back(std::move(note));
  if (!found) return std::nullopt;
  LoadReport report{.state = std::move(found->state), .path = found->from, .config_json = config_json(config_)};
  // Settings are those of the same command; files may have been replaced.
  agree(rank_.mesh.world(), [&] { require_same_run(report, config_, *loader_.data().train, {"data"}); });
  return report;
}

// Loads the parts in checkpoint.load from checkpoint.load_from, which is not modified; the rest of the run starts from
// scratch.
LoadReport RunState::load_elsewhere() {
  const std::vector<std::string>& parts = config_.checkpoint.load;
  ProcessGroup& world = rank_.mesh.world();
  std::string step;
  bool floats = config_.precision.frozen_weights == FrozenWeights::kInt8 && has_part(parts, "weights");
  agree(world, [&] {
    if (!rank_.is_rank0()) return;
    step = resolve_step(config_.checkpoint.load_from);
    floats = floats && !holds_int8(step);
  });
  floats = broadcast_bytes(world, floats ? "f" : "", 0) == "f";
  step = broadcast_bytes(world, step, 0);
  std::vector<ShardView> views = engine_.checkpoint_views();
  std::erase_if(views, [&](const ShardView& v) {
    return !has_part(parts, v.name.rfind("optim/", 0) == 0 ? "optim" : "weights");
  });
  const FitOptions fit = fit_options_elsewhere(config_, engine_.spec());
  LoadReport report;
  agree(world, [&] {
    report = floats ? load_floats(step, std::move(views), parts, fit)
                    : load_step(step, views, rank_.mesh, *rank_.backend.device, rank_.stream, same_run(parts), fit);
  });
  report.state = part_of(report.state, parts);
  report.state.run_uuid = shared_uuid(world);
  report.state.seed = static_cast<uint64_t>(config_.train.seed);
  return report;
}

// The step that --from has imported, if it holds as floats what this run holds in int8; "": none.
std::string RunState::imported_floats() const {
  if (config_.precision.frozen_weights != FrozenWeights::kInt8) return "";
  std::string path;
  agree(rank_.mesh.world(), [&] {
    if (!rank_.is_rank0()) return;
    const auto steps = list_steps(config_.checkpoint_dir());
    if (steps.size() == 1 && steps[0].first == 0 && !holds_int8(steps[0].second)) path = steps[0].second;
  });
  return broadcast_bytes(rank_.mesh.world(), path, 0);
}

AcceptStep RunState::same_run(const std::vector<std::string>& parts) const {
  return [this, parts](const LoadReport& found) { require_same_run(found, config_, *loader_.data().train, parts); };
}

// Loads a step whose frozen weights are floats into a run that holds them in int8. Collective.
LoadReport RunState::load_floats(const std::string& step, std::vector<ShardView> views,
                                 const std::vector<std::string>& parts, FitOptions fit) const {
  std::erase_if(views, [](const ShardView& v) { return v.data.dtype == DType::kI8 || v.name.starts_with("scale/"); });
  for (const ParamSpec& p : engine_.spec().params)
    if (p.held_in_int8()) fit.allow_extra.push_back("master/" + p.name);
  LoadReport report = load_step(step, views, rank_.mesh, *rank_.backend.device, rank_.stream, same_run(parts), fit);
  quantize_from(step);
  return report;
}

// Loads frozen weights that this run holds in int8 from a checkpoint with floats, one unit at a time. Collective.
void RunState::quantize_from(const std::string& step) const {
  ParamStore& store = engine_.store();
  const auto units = max_over(rank_.mesh.world(), int64_t{store.int8_units()});
  const FitOptions fit{.allow_extra = {"*"}, .read_once = config_.checkpoint.read_once};
  for (int k = 0; k < static_cast<int>(units); ++k) {
    const bool mine = k < store.int8_units();
    const std::vector<ShardView> views = mine ? store.stage_int8(k) : std::vector<ShardView>{};
    load_step(step, views, rank_.mesh, *rank_.backend.device, rank_.stream, {}, fit);
    if (mine) store.quantize_staged();
  }
}

// The run has a checkpoint of its own, so load_from is not used; a misspelt path must still be reported.
void RunState::check_unused_load_from() {
  agree(rank_.mesh.world(), [&] {
    if (!rank_.is_rank0()) return;
    std::string found = "is there";
    try {
      found = resolve_step(config_.checkpoint.load_from) + " is there";
    } catch (const Error& e) {
      if (e.code() == Exit::kUsage) throw Error(cat("checkpoint.load_from: ", e.what()), Exit::kUsage);
      found = e.what();
    }
    loaded_->warnings.push_back(cat("checkpoint.load_from has no effect (", found,
                                    "): this run resumes from its own checkpoint, ", loaded_->path,
                                    "; a new run with another --log.name would start from it"));
  });
}

// From here on samples are counted separately from tokens, unless the checkpoint did so already.
void RunState::begin_curriculum() {
  const Curriculum& curriculum = loader_.curriculum();
  state_.pld_theta.reset();
  if (!curriculum) return state_.curriculum.reset();
  if (state_.curriculum) return;
  state_.curriculum = {curriculum.length(state_.step + 1), state_.consumed_tokens / config_.model.seq};
}

// Continues from a checkpoint whose state and weights are loaded.
void RunState::continue_from(const TrainState& state) {
  state_ = state;
  begin_curriculum();
  engine_.set_applied_steps(state_.applied_steps, state_.applied_samples, state_.schedule_steps);
  LossScaler& scaler = engine_.loss_scaler();
  if (!scaler.options().dynamic) state_.scaler.reset();
  // A checkpoint of a run with a fixed scale stores none: a dynamic scale then starts from its initial value.
  if (state_.scaler) scaler.restore({state_.scaler->scale, state_.scaler->clean, state_.scaler->hysteresis});
  engine_.adopt();
}

void RunState::return_to(const TrainState& state, RunLoader::Window skip) {
  const double elapsed = state_.elapsed_seconds;
  continue_from(state);
  state_.elapsed_seconds = elapsed;
  loader_.open(state_, skip);
}

void RunState::note_changes() {
  const Curriculum& curriculum = loader_.curriculum();
  if (const auto& was = loaded_->state.curriculum; was && loaded_->state.step > 0) {
    const int64_t now = curriculum ? curriculum.length(loaded_->state.step) : config_.model.seq;
    if (was->length != now)
      loaded_->warnings.push_back(
          fmt::format("the curriculum changed: the last step before the checkpoint took {} "
                      "tokens of each sample, this run's has {} there",
                      was->length, now));
  }
  const LayerDrop& drop = engine_.options().layer_drop;
  if (const auto& was = loaded_->state.pld_theta; was && state_.applied_steps > 0) {
    // The last step was applied, or skipped at the theta of the next.
    const double a = theta_at(drop, state_.applied_steps - 1), b = theta_at(drop, state_.applied_steps);
    if (*was != a && *was != b)
      loaded_->warnings.push_back(fmt::format(
          "progressive layer drop changed: the last step before the checkpoint had theta {:.6g}, this run's has {:.6g}",
          *was, a));
  }
  if (state_.schedule_steps > 0) note_schedule_change();
}

void RunState::note_schedule_change() {
  const int64_t t = state_.schedule_steps;
  const auto rate = [](const LrSchedule& s, int64_t k) { return static_cast<double>(static_cast<float>(s.at(k).lr)); };
  // The last step was applied, or skipped at the rate of the next.
  const auto fits = [&](const LrSchedule& s) {
    return state_.lr_value == rate(s, t) || state_.lr_value == rate(s, t + 1);
  };
  const LrSchedule& schedule = engine_.lr_schedule();
  if (fits(schedule)) return;
  if (const int64_t steps = steps_of(loaded_->config_json); steps > 0 && steps != config_.train.steps) {
    Config before = config_;
    before.train.steps = steps;
    if (fits(*make_lr_schedule(lr_options(before))))
      return notes_.push_back(
          fmt::format("train.steps {} instead of {}: the learning-rate schedule ends there, at step "
                      "{} it has {:.6g} instead of {:.6g}",
                      config_.train.steps, steps, t, rate(schedule, t), state_.lr_value));
  }
  loaded_->warnings.push_back(fmt::format(
      "the learning-rate schedule changed: the last step before the checkpoint used {:.6g} ({}), this run's schedule "
      "({}) has {:.6g} there",
      state_.lr_value, state_.lr_type, config_.schedule.type, rate(schedule, t)));
}

void RunState::advance(const StepResult& r) {
  ++state_.step;
  state_.skipped_steps += r.skipped;
  state_.applied_steps = engine_.applied_steps();
  state_.schedule_steps = engine_.schedule_steps();
  state_.applied_samples = engine_.applied_samples();
  if (const LossScaler& s = engine_.loss_scaler(); s.options().dynamic)
    state_.scaler = {s.state().scale, s.state().clean, s.state().hysteresis};
  state_.consumed_samples = loader_.consumed();
  state_.consumed_tokens += loader_.global_tokens();
  if (state_.curriculum)
    state_.curriculum = {loader_.step().length(), state_.curriculum->samples + config_.train.global_batch};
  if (engine_.options().layer_drop) state_.pld_theta = r.theta;
  state_.lr_value = r.lr;
}

void RunState::evaluated(double loss) {
  if (state_.best_step < 0 || loss < state_.best_loss) {
    state_.best_loss = loss;
    state_.best_step = state_.step;
  }
  state_.eval_loss = loss;
  state_.eval_step = state_.step;
}

double RunState::elapsed_seconds() const { return state_.elapsed_seconds + now() - started_; }

const TrainState& RunState::to_save(std::string anomaly_json, int64_t consecutive_skips) {
  state_.elapsed_seconds = elapsed_seconds();
  started_ = now();
  state_.origin = "train";
  state_.optim_type = config_.optim.type;
  state_.lr_type = config_.schedule.type;
  state_.global_batch = config_.train.global_batch;
  state_.micro_batch = config_.train.micro_batch;
  state_.data_json = loader_.cursor_json(state_.consumed_samples);
  state_.anomaly_json = std::move(anomaly_json);
  state_.consecutive_skips = consecutive_skips;
  return state_;
}

}  // namespace gt
