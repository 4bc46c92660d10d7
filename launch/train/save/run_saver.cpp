#include "launch/train/save/run_saver.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "kernels/core/host.h"
#include "launch/observe/sinks/progress.h"
#include "launch/options/version.h"
#include "launch/ranks/agree.h"
#include "launch/ranks/signals.h"
#include "parallel/comm/host_values.h"

namespace gt {
namespace {

// Returns what failed saves with the same cause have in common: their text without words that contain digits, which are
// steps, sizes and file names.
std::string reason_of(const Error& e) {
  std::istringstream words(e.what());
  std::string out = "not written:";
  for (std::string word; words >> word;) out += word.find_first_of("0123456789") == std::string::npos ? " " + word : "";
  return out;
}

double mtbf_hours(const CheckpointConfig& c, int world) {
  return c.mtbf_hours > 0 ? c.mtbf_hours : default_mtbf_hours(world);
}

}  // namespace

RunSaver::RunSaver(const Config& config, const Mesh& mesh, const Backend& backend, Stream stream)
    : config_(config),
      mesh_(mesh),
      backend_(backend),
      stream_(stream),
      background_(vfs_, mesh, *backend.device, stream),
      staged_(config.checkpoint.async) {
  if (config.checkpoint.saves_by_time())
    timer_.emplace(mtbf_hours(config.checkpoint, mesh.shape().world()) * 3600, now());
}

void RunSaver::prepare(const std::vector<ShardView>& views, bool fits, bool will_save) {
  const CheckpointConfig& c = config_.checkpoint;
  const int64_t bytes = snapshot_bytes(views);
  const auto [most, refused] = max_over(mesh_.world(), std::array{bytes, int64_t{copy_fits(c, bytes, fits) ? 0 : 1}});
  snapshot_bytes_ = most;
  checkpoint_bytes_ = sum_over(mesh_.world(), bytes);
  staged_ = c.async && refused == 0;
  if (staged_ && will_save) agree(mesh_.world(), [&] { background_.reserve(bytes); });
}

std::string save_text(const CheckpointConfig& c, int world, bool staged, int64_t bytes) {
  const std::string size = format_bytes(static_cast<double>(bytes));
  std::string out = c.save_steps() > 0 ? fmt::format("every {} steps", c.every) : std::string("at the end");
  if (c.saves_by_time()) {
    const double hours = mtbf_hours(c, world);
    out = fmt::format(
        "first after {}, then by Young's rule (checkpoint.every auto): every sqrt(2 x stall of a save x "
        "{:.3g} h between failures), at least a minute",
        format_duration(SaveTimer(hours * 3600, 0).interval()), hours);
  }
  if (staged) return out + fmt::format("; asynchronously, from a snapshot of {} per rank", size);
  if (!c.async) return out + "; training waits for them";
  return out + fmt::format(
                   "; training waits for them and they are written in chunks of 8 MiB, because a snapshot of {} per "
                   "rank does not fit {}",
                   size, c.staging_bytes == "auto" ? "the free memory" : "checkpoint.staging_bytes " + c.staging_bytes);
}

bool copy_fits(const CheckpointConfig& c, int64_t bytes, bool fits_memory) {
  int64_t budget = 0;
  return c.staging_bytes == "auto" ? fits_memory : parse_int(c.staging_bytes, budget) && bytes <= budget;
}

std::string RunSaver::describe() const {
  return save_text(config_.checkpoint, mesh_.shape().world(), staged_, snapshot_bytes_);
}

// Every rank derives the attempt's name from its own state; different names would mean different checkpoints.
bool RunSaver::ranks_agree(const TrainState& state) {
  if (same_attempt(mesh_, state)) return true;
  const std::string text = fmt::format(
      "checkpoint of step {}: the ranks disagree on the run or step to save, so nothing was written "
      "(checkpoint.tag_validation {})",
      state.step, name_of(config_.checkpoint.tag_validation));
  agree(mesh_.world(),
        [&] { GT_REQUIRE(config_.checkpoint.tag_validation != TagValidation::kFail, Exit::kInternal, text); });
  if (log_ && config_.checkpoint.tag_validation == TagValidation::kWarn) log_->warn(state.step, text);
  return false;
}

SaveOptions RunSaver::options() const {
  SaveOptions o;
  o.zero_stage = static_cast<int>(config_.zero.stage);
  o.vpp = static_cast<int>(config_.parallel.vpp);
  o.retention = config_.checkpoint;
  o.how = config_.checkpoint;
  if (config_.model.tied) o.ties = {{"master/head.weight", "master/embed.weight"}};
  o.git = git_hash();
  o.isa = cpu_isa();
  o.before_commit = [this] {
    if (lock_ != nullptr) lock_->require_mine();
    if (log_ != nullptr) log_->flush(kFlushLimit);
  };
  return o;
}

void RunSaver::save(const TrainState& state, const std::vector<ShardView>& views, std::vector<AuxFile> aux, bool must) {
  if (saved_step_ == state.step) return;
  if (background_.busy() && config_.checkpoint.when_busy == WhenBusy::kSkip && !must) {
    if (log_)
      log_->push(
          create_event(state.step, fmt::format("no checkpoint of step {}: that of step {} is still being written",
                                               state.step, background_.step())));
    return;
  }
  const double begin = now();
  finish();
  agree(mesh_.world(), [&] {
    if (lock_ != nullptr) lock_->require_mine();
  });
  if (!ranks_agree(state)) return;
  SaveOutcome outcome;
  outcome.step = state.step;
  if (staged_) {
    auto failed = background_.start(config_.checkpoint_dir(), state, views, std::move(aux), options());
    stall_ = now() - begin;
    if (timer_) timer_->saved(now(), stall_);
    if (!failed) return;
    outcome = std::move(*failed);
  } else {
    try {
      outcome.report = save_checkpoint(vfs_, config_.checkpoint_dir(), state, views, aux, options(), mesh_,
                                       *backend_.device, stream_);
    } catch (const Error& e) { outcome.error = e; }
    stall_ = now() - begin;
    if (timer_) timer_->saved(now(), stall_);
  }
  settle(outcome);
}

ControlFlags RunSaver::requests() const { return {stop_requested(), ready(), due()}; }

void RunSaver::after_step(int ready_ranks) {
  if (!background_.busy() || ready_ranks < mesh_.shape().world()) return;
  if (const auto outcome = background_.advance()) settle(*outcome);
}

void RunSaver::finish() {
  if (const auto outcome = background_.finish()) settle(*outcome);
}

// Collective in effect: every rank has the same outcome, so all of them throw, and the first one logs it.
void RunSaver::settle(const SaveOutcome& o) {
  if (o.error) {
    const Exit code = o.error->code();
    const bool is_rank0 = mesh_.rank() == 0;
    if (code != Exit::kIo && code != Exit::kNumerical) throw AgreedError(o.error->what(), code, is_rank0);
    ++failures_;
    last_error_ = o.error;
    if (log_) log_->warn(o.step, fmt::format("not written: {}", o.error->what()), reason_of(*o.error));
    if (failures_ >= kMostFailures && config_.checkpoint.fail_policy == FailPolicy::kAbort)
      throw AgreedError(fmt::format("{} checkpoints in a row could not be written (checkpoint.fail_policy abort); the "
                                    "last one: {}",
                                    failures_, o.error->what()),
                        Exit::kIo, is_rank0);
    return;
  }
  if (last_error_ && log_) log_->rearm(reason_of(*last_error_));
  last_error_.reset();
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
                                                 "model.lora_base",
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
    const bool length = option.key().rfind("data.curriculum", 0) == 0;  // other data keys have their own check
    if ((names(kFree, option) && !length) || names(allowed, option)) continue;
    const bool adapter = option.section == "model" && option.name.rfind("lora_", 0) == 0 && option.name != "lora_rank";
    if (adapter && now.model.lora.rank == 0) continue;  // nothing reads it
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
