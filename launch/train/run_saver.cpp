#include "launch/train/run_saver.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/core/host.h"
#include "launch/ranks/agree.h"
#include "launch/version.h"

namespace gt {

RunSaver::RunSaver(const Config& config, const Mesh& mesh, const Backend& backend, Stream stream)
    : config_(config),
      mesh_(mesh),
      backend_(backend),
      stream_(stream),
      background_(vfs_, mesh, *backend.device, stream) {}

SaveOptions RunSaver::options() const {
  const CheckpointConfig& c = config_.checkpoint;
  SaveOptions o;
  o.zero_stage = static_cast<int>(config_.zero.stage);
  o.vpp = static_cast<int>(config_.parallel.vpp);
  o.retention = {static_cast<int>(c.keep), c.keep_every, c.keep_best};
  if (config_.model.tied) o.ties = {{"master/head.weight", "master/embed.weight"}};
  o.readback = c.readback;
  o.sha256 = c.hash == "sha256";
  o.git = git_hash();
  o.isa = cpu_isa();
  if (lock_ != nullptr) o.may_commit = [this] { lock_->require_mine(); };
  return o;
}

void RunSaver::save(const TrainState& state, const std::vector<ShardView>& views, std::vector<AuxFile> aux, bool must) {
  if (saved_step_ == state.step) return;
  if (background_.busy() && config_.checkpoint.when_busy == "skip" && !must) {
    if (log_)
      log_->push(make_event(state.step, fmt::format("no checkpoint of step {}: that of step {} is still being written",
                                                    state.step, background_.step())));
    return;
  }
  const double begin = now();
  finish();
  agree(mesh_.world(), [&] {
    if (lock_ != nullptr) lock_->require_mine();
  });
  SaveOutcome outcome;
  outcome.step = state.step;
  if (config_.checkpoint.async) {
    auto failed = background_.start(config_.checkpoint_dir(), state, views, std::move(aux), options());
    stall_ = now() - begin;
    if (!failed) return;
    outcome = std::move(*failed);
  } else {
    try {
      outcome.report = save_checkpoint(vfs_, config_.checkpoint_dir(), state, views, aux, options(), mesh_,
                                       *backend_.device, stream_);
    } catch (const Error& e) { outcome.error = e; }
    stall_ = now() - begin;
  }
  settle(outcome);
}

void RunSaver::after_step(int ready_ranks) {
  if (!background_.busy() || ready_ranks < mesh_.shape().world()) return;
  if (const auto outcome = background_.advance()) settle(*outcome);
}

void RunSaver::finish() {
  if (const auto outcome = background_.finish()) settle(*outcome);
}

void RunSaver::settle(const SaveOutcome& o) {
  if (o.error) {
    if (o.error->code() != Exit::kIo && o.error->code() != Exit::kNumerical) throw *o.error;
    ++failures_;
    const std::string again = failures_ > 1 ? fmt::format(" (the {}. in a row)", failures_) : "";
    if (log_)
      log_->warn(o.step, fmt::format("checkpoint of step {} was not written{}: {}", o.step, again, o.error->what()));
    GT_REQUIRE(
        failures_ < kMostFailures || config_.checkpoint.fail_policy == "continue", Exit::kIo, failures_,
        " checkpoints in a row could not be written (checkpoint.fail_policy abort); the last one: ", o.error->what());
    return;
  }
  failures_ = 0;
  saved_step_ = o.step;
  if (!log_) return;
  log_->push(SavedRecord{o.step, wall_seconds(), stall_, o.report.seconds, o.report.bytes});
  for (const std::string& w : o.report.warnings) log_->warn(o.step, w);
}

std::vector<std::string> changed_keys(const std::string& saved_config_json, const Config& now,
                                      const std::vector<std::string>& allowed) {
  static const std::vector<std::string> kFree = {"parallel",
                                                 "zero",
                                                 "checkpoint",
                                                 "log",
                                                 "device",
                                                 "launch",
                                                 "comm",
                                                 "fault",
                                                 "train.steps",
                                                 "train.micro_batch",
                                                 "train.grad_accum",
                                                 "train.eval_every",
                                                 "train.eval_steps",
                                                 "model.loss_chunk",
                                                 "data"};
  const auto names = [](const std::vector<std::string>& list, const Option& o) {
    return std::find(list.begin(), list.end(), o.key()) != list.end() ||
           std::find(list.begin(), list.end(), o.section) != list.end();
  };
  const JsonValue saved = parse_json(saved_config_json, "config.json of the checkpoint");
  Config before, copy = now;
  std::vector<Option> old_options = list_options(before), new_options = list_options(copy);
  std::vector<std::string> out;
  for (size_t k = 0; k < new_options.size(); ++k) {
    const Option& option = new_options[k];
    const bool length = option.key().rfind("data.curriculum", 0) == 0;  // of sequences; other data has rules of its own
    if ((names(kFree, option) && !length) || names(allowed, option)) continue;
    const JsonValue* section = saved.find(option.section);
    const JsonValue* value = section == nullptr ? nullptr : section->find(option.name);
    if (value != nullptr) set_from_json(old_options[k], *value);  // an older checkpoint without the key had its default
    if (value_text(old_options[k]) != value_text(option))
      out.push_back(fmt::format("{}: {} in the checkpoint, {} now", option.key(), value_text(old_options[k]),
                                value_text(option)));
  }
  return out;
}

}  // namespace gt
