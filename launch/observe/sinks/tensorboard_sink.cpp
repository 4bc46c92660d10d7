#include "launch/observe/sinks/tensorboard_sink.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <string_view>
#include <utility>

#include "kernels/core/check.h"
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
  auto events = std::make_unique<TensorBoardCurves>(info.run_dir, info.first_step);
  file_ = &events->file(now);
  curves_ = std::move(events);
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
  if (!begin(r)) return;
  constexpr int kParts = 2, kTimes = 27;  // positions that other losses and times of the step precede
  draw(r, 0, kParts);
  for (const LossParts::Part& part : r.parts)
    if (!std::isnan(part.value)) point(cat("train/", part.key), part.value, r.step, r.time);
  draw(r, kParts, kTimes);
  for (size_t t = 0; t < r.timers.size(); ++t)
    if (kTimerNames[t] != nullptr && r.timers[t] != 0)
      file_->scalar(cat("time/", kTimerNames[t]), r.timers[t], r.timers_step, r.time);
  draw(r, kTimes);
  for (size_t i = 0; memory_ && i < memory_->size(); ++i)
    point(cat("mem/", kMemoryNames[i]), static_cast<double>((*memory_)[i]), r.step, r.time);
  if (!sample_conditions_ || r.time < sampled_ + kSampleSeconds) return;
  sampled_ = r.time;
  const DeviceConditions c = sample_conditions_();
  for (const auto& [tag, value] : {std::pair("sys/gpu_util", c.busy),
                                   {"sys/gpu_power_w", c.watts},
                                   {"sys/gpu_temp_c", c.celsius},
                                   {"sys/gpu_sm_mhz", c.clock_mhz}})
    if (!std::isnan(value)) point(tag, value, r.step, r.time);
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

}  // namespace gt
