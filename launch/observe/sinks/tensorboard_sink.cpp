#include "launch/observe/sinks/tensorboard_sink.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <string_view>
#include <utility>

#include "launch/observe/sinks/points.h"
#include "launch/options/json_text.h"

namespace gt {
namespace {

constexpr double kSampleSeconds = 1;

// TensorBoard's table shows five settings until the user chooses others: the ones that runs are compared by.
constexpr std::string_view kFirstSettings[] = {"optim.lr", "optim.type", "train.global_batch", "schedule.type",
                                               "optim.weight_decay"};

// Scalar keys of a config, kFirstSettings first, then ascending; not lists, empty texts and paths.
std::vector<HParam> settings_of(const std::string& config_json) {
  std::vector<HParam> out;
  if (config_json.empty()) return out;
  const JsonValue config = parse_json(config_json, "config");
  for (size_t s = 0; s < config.items.size(); ++s)
    for (size_t i = 0; i < config.items[s].items.size() && config.items[s].kind == JsonValue::Kind::kObject; ++i) {
      const JsonValue& value = config.items[s].items[i];
      const std::string name = config.keys[s] + "." + config.items[s].keys[i];
      double number = 0;
      if (value.kind == JsonValue::Kind::kNumber && parse_double(value.text, number)) out.push_back({name, number});
      if (value.kind == JsonValue::Kind::kBool) out.push_back({name, value.boolean});
      if (value.kind == JsonValue::Kind::kString && !value.text.empty() && value.text.find('/') == std::string::npos)
        out.push_back({name, value.text});
    }
  const auto order = [](const HParam& p) {
    const auto* first = std::find(std::begin(kFirstSettings), std::end(kFirstSettings), p.name);
    return std::pair(first, std::string_view(p.name));
  };
  std::sort(out.begin(), out.end(), [&](const HParam& a, const HParam& b) { return order(a) < order(b); });
  return out;
}

}  // namespace

void TensorBoardSink::start(const StartInfo& info) {
  const double now = wall_seconds();
  file_ = std::make_unique<TensorBoardFile>(info.run_dir, info.first_step, now);
  const int64_t step = info.first_step - 1;
  file_->text("run/command", info.command, step, now);
  file_->text("run/config", "```json\n" + info.config_json + "```", step, now);
  if (!info.layout.empty()) file_->text("run/layout", "```\n" + info.layout + "\n```", step, now);
  const std::vector<HParam> settings = settings_of(info.config_json);
  const std::string metrics[] = {"train/loss", "eval/loss", "perf/tokens_per_second"};
  file_->add(event_hparams_experiment(file_->event_time(now), settings, metrics));
  file_->add(event_hparams_start(file_->event_time(now), settings));
  if (!info.environment.empty()) file_->text("run/environment", "```\n" + info.environment + "\n```", step, now);
}

void TensorBoardSink::step(const StepRecord& r) {
  if (r.step <= newest_) file_->start_again(r.step, r.time);  // a rollback
  newest_ = r.step;
  if (r.step % every_ != 0 && r.step != r.total_steps) return;
  const Points p{[&](std::string_view tag, double y) { file_->scalar(tag, y, r.step, r.time); }};
  p.always("train/loss", r.loss);
  for (const LossParts::Part& part : r.parts) p.known(std::string("train/") + part.key, part.value);
  p.always("train/grad_norm", r.grad_norm);
  p.always("train/lr", r.lr);
  p.known("train/momentum", r.momentum);
  p.known("train/clip_coef", r.clip_coef);
  p.known("train/loss_scale", r.loss_scale);
  p.always("train/skipped_steps", static_cast<double>(r.skipped));
  p.always("train/samples", static_cast<double>(r.samples));
  p.always("train/tokens", static_cast<double>(r.tokens));
  p.always("train/global_batch", static_cast<double>(r.global_batch));
  p.always("train/seq", static_cast<double>(r.seq));
  p.always("train/epoch", static_cast<double>(r.epoch));
  p.known("perf/step_seconds", r.step_seconds);
  p.known("perf/tokens_per_second", r.tokens_per_second);
  p.known("perf/tflops_per_device", r.tflops_per_device);
  p.known("perf/mfu", r.mfu);
  p.known("perf/mfu_full", r.mfu_full);
  p.known("perf/mfu_fp8", r.mfu_fp8);
  p.known("perf/hfu", r.hfu);
  p.known("perf/of_ceiling", r.of_ceiling);
  p.known("perf/bubble", r.bubble);
  p.known("perf/pipeline_bubble", r.pipeline_bubble);
  p.known("perf/bubble_predicted", r.bubble_predicted);
  p.known("perf/plan_ratio", r.step_seconds / r.step_predicted);
  p.known("perf/exposed_comm", r.exposed_comm);
  p.known("perf/data_wait", r.data_wait);
  for (size_t t = 0; t < r.timers.size(); ++t)
    if (kTimerNames[t] != nullptr && r.timers[t] != 0)
      file_->scalar(std::string("time/") + kTimerNames[t], r.timers[t], r.timers_step, r.time);
  if (r.slowest_rank >= 0) p.always("perf/slowest_rank", static_cast<double>(r.slowest_rank));
  if (r.peak_bytes >= 0) p.always("mem/peak_bytes", static_cast<double>(r.peak_bytes));
  if (r.slowest_stage >= 0) p.always("perf/slowest_stage", static_cast<double>(r.slowest_stage));
  p.known("perf/stage_spread", r.stage_spread);
  for (size_t i = 0; memory_ && i < memory_->size(); ++i)
    p.always(std::string("mem/") + kMemoryNames[i], static_cast<double>((*memory_)[i]));
  if (!sample_conditions_ || r.time < sampled_ + kSampleSeconds) return;
  sampled_ = r.time;
  const DeviceConditions c = sample_conditions_();
  p.known("sys/gpu_util", c.busy);
  p.known("sys/gpu_power_w", c.watts);
  p.known("sys/gpu_temp_c", c.celsius);
  p.known("sys/gpu_sm_mhz", c.clock_mhz);
}

// The rank that needs most stands for all.
void TensorBoardSink::memory(const MemoryRecord& r) {
  int64_t most = -1;
  for (const RankMemory& m : *r.ranks) {
    const int64_t sum = std::accumulate(m.measured.begin(), m.measured.end(), int64_t{0});
    if (sum > most) most = sum, memory_ = m.measured;
  }
}

void TensorBoardSink::end(const EndInfo& info) {
  file_->add(event_hparams_end(file_->event_time(wall_seconds()), info.exit_code == 0));
}

void TensorBoardSink::eval(const EvalRecord& r) {
  file_->scalar("eval/loss", r.loss, r.step, r.time);
  file_->scalar("eval/perplexity", r.perplexity(), r.step, r.time);
  file_->scalar("eval/seconds", r.seconds, r.step, r.time);
}

void TensorBoardSink::saved(const SavedRecord& r) {
  file_->scalar("time/checkpoint_stall", r.stall_seconds, r.step, r.time);
  if (!std::isnan(r.write_seconds)) file_->scalar("time/checkpoint_write", r.write_seconds, r.step, r.time);
}

void TensorBoardSink::flush() {
  if (file_) file_->flush();
}

}  // namespace gt
