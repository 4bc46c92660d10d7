// Where the trainer begins: fresh weights, or a checkpoint that this run may go on from.
#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/world.h"
#include "launch/config/config_optim.h"
#include "launch/ranks/agree.h"
#include "launch/train/resume_check.h"
#include "launch/train/trainer.h"
#include "launch/train/training_data.h"

namespace gt {
namespace {

// train.steps of a checkpoint's config; 0: it says nothing.
int64_t steps_of(const std::string& config_json) {
  if (config_json.empty()) return 0;
  const JsonValue json = parse_json(config_json, "config.json of the checkpoint");
  const JsonValue* train = json.find("train");
  const JsonValue* steps = train != nullptr ? train->find("steps") : nullptr;
  int64_t n = 0;
  return steps != nullptr && parse_int(steps->text, n) ? n : 0;
}

}  // namespace

void Trainer::load_or_init() {
  ProcessGroup& world = mesh_->world();
  const CheckpointConfig& c = config_.checkpoint;
  if (!c.allow_missing.empty() || !c.load_from.empty()) engine_->init_weights();  // of what is not loaded
  if (c.resume != "never") {
    agree(world, [&] {
      if (world.rank() == 0) require_same_kind(config_);
    });
    agree(world, [&] {
      resumed_ = load_checkpoint(
          config_.checkpoint_dir(), c.resume, engine_->checkpoint_views(), *mesh_, *backend_->device, compute_,
          [this](const LoadReport& found) { require_same_run(found, config_, *train_data_); }, fit_options());
    });
  }
  const bool own = resumed_.has_value();
  if (own && !c.load_from.empty()) look_at_load_from();
  if (!own && !c.load_from.empty()) resumed_ = start_from_elsewhere();
  require_patterns_found();
  if (resumed_) {
    go_on_from(resumed_->state);
    note_schedule_change();
    agree(world, [&] {
      try {
        guard_.restore(state_.bad_steps_json);
      } catch (const Error& e) { fail(e.code(), resumed_->path, "/manifest.json: state: bad_steps: ", e.what()); }
    });
    if (!own) saver_->set_saved_step(-1);
  } else {
    engine_->init_weights();
    begin_curriculum();
    state_.run_uuid = shared_uuid(world);
    state_.seed = static_cast<uint64_t>(config_.train.seed);
  }
  skips_ = std::make_unique<SkipWatch>(config_.precision.max_consecutive_skips, state_.skips_in_a_row);
  first_step_ = state_.step + 1;
  open_loader();
  if (!valid_data_) return;
  LoaderConfig l = training_loader(config_, *mesh_);
  l.prefetch = 1;
  eval_loader_ = std::make_unique<Loader>(*valid_data_, l, compute_.device, *backend_->device, compute_);
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

// A fault at a tensor that no rank has would never happen.
void Trainer::require_fault_targets() {
  const std::vector<std::string> wanted = injector_.params();
  if (wanted.empty()) return;
  std::vector<std::string> own, known;
  for (const auto& t : engine_->store().tensors()) own.push_back(t->name);
  for (const std::string& rank : gather_bytes(mesh_->world(), pack(own)))
    for (std::string& name : unpack(rank)) known.push_back(std::move(name));
  agree(mesh_->world(), [&] {
    for (const std::string& name : wanted) {
      const std::string guess = did_you_mean(name, known);
      GT_REQUIRE(std::find(known.begin(), known.end(), name) != known.end(), Exit::kUsage, "fault.inject: param=", name,
                 ": no tensor of that name",
                 guess.empty() ? "; names are those of `gpttrain ckpt inspect`, such as " + known[0]
                               : "; did you mean " + guess + "?");
    }
  });
}

// The run has a checkpoint of its own, so this one is not used; a misspelt name must not go unnoticed.
void Trainer::look_at_load_from() {
  agree(mesh_->world(), [&] {
    if (!speaks()) return;
    std::string state = "is there";
    try {
      state = resolve_step(config_.checkpoint.load_from) + " is there";
    } catch (const Error& e) {
      if (e.code() == Exit::kUsage) throw Error(cat("checkpoint.load_from: ", e.what()), Exit::kUsage);
      state = e.what();
    }
    resumed_->warnings.push_back(cat("checkpoint.load_from is not used (", state,
                                     "): this run goes on from a checkpoint of its own, ", resumed_->path,
                                     "; a new run with another --log.name would begin with it"));
  });
}

void Trainer::note_schedule_change() {
  if (const auto& was = resumed_->state.curriculum; was && resumed_->state.step > 0) {
    const int64_t now = curriculum_ ? curriculum_.length(resumed_->state.step) : config_.model.seq;
    if (was->length != now)
      resumed_->warnings.push_back(fmt::format("the curriculum changed: the last step before the checkpoint took {} "
                                               "tokens of each sample, this run's has {} there",
                                               was->length, now));
  }
  const LayerDrop& drop = engine_->options().layer_drop;
  if (const auto& was = resumed_->state.pld_theta; was && state_.applied_steps > 0) {
    // The last step was applied, or skipped at the theta of the next.
    const double a = theta_at(drop, state_.applied_steps - 1), b = theta_at(drop, state_.applied_steps);
    if (*was != a && *was != b)
      resumed_->warnings.push_back(fmt::format(
          "progressive layer drop changed: the last step before the checkpoint had theta {:.6g}, this run's has {:.6g}",
          *was, a));
  }
  if (state_.schedule_steps == 0) return;
  const LrSchedule& schedule = engine_->lr_schedule();
  // The last step was applied, or skipped at the rate of the next.
  const auto rate = [&](int64_t t) { return static_cast<double>(static_cast<float>(schedule.at(t).lr)); };
  const int64_t t = state_.schedule_steps;
  if (state_.lr_value == rate(t) || state_.lr_value == rate(t + 1)) return;
  if (const int64_t steps = steps_of(resumed_->config_json); steps > 0 && steps != config_.train.steps) {
    Config before = config_;
    before.train.steps = steps;
    const auto was = make_lr_schedule(lr_options(before));
    const auto old_rate = [&](int64_t k) { return static_cast<double>(static_cast<float>(was->at(k).lr)); };
    if (state_.lr_value == old_rate(t) || state_.lr_value == old_rate(t + 1))
      return notes_.push_back(
          fmt::format("train.steps {} instead of {}: the learning-rate schedule ends there, at step "
                      "{} it has {:.6g} instead of {:.6g}",
                      config_.train.steps, steps, t, rate(t), state_.lr_value));
  }
  resumed_->warnings.push_back(fmt::format(
      "the learning-rate schedule changed: the last step before the checkpoint used {:.6g} ({}), this run's schedule "
      "({}) has {:.6g} there",
      state_.lr_value, state_.lr_type, config_.schedule.type, rate(t)));
}

// Samples of steps are counted apart from tokens from here on, unless the checkpoint did so.
void Trainer::begin_curriculum() {
  state_.pld_theta.reset();
  if (!curriculum_) return state_.curriculum.reset();
  if (state_.curriculum) return;
  state_.curriculum = {curriculum_.length(state_.step + 1), state_.consumed_tokens / config_.model.seq};
}

// A checkpoint of a run with a fixed scale has none: a dynamic one then begins as in a fresh run.
void Trainer::restore_scaler() {
  if (!engine_->loss_scaler().options().dynamic) {
    state_.scaler.reset();
  } else if (state_.scaler) {
    engine_->loss_scaler().restore({state_.scaler->scale, state_.scaler->clean, state_.scaler->hysteresis});
  }
}

// State and weights are those of a checkpoint.
void Trainer::go_on_from(const TrainState& state) {
  state_ = state;
  begin_curriculum();
  engine_->set_applied_steps(state_.applied_steps, state_.applied_samples, state_.schedule_steps);
  restore_scaler();
  engine_->adopt();
  if (!state_.data_json.empty()) skip_windows_ = data_cursor_from_json(state_.data_json).skip_windows;
  saver_->set_saved_step(state_.step);
}

}  // namespace gt
