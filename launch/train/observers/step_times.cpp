// Times of steps: what was predicted, utilization of the device, bubbles and waits, times by pipeline rank.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/core/host.h"
#include "launch/observe/data_wait.h"
#include "launch/observe/predict.h"
#include "launch/observe/rank_memory.h"
#include "launch/observe/step_prediction.h"
#include "launch/observe/utilization.h"
#include "launch/train/observers/run_observer.h"

namespace gt {
namespace {

// Predicts the step where `plan --calibrate` has measured this machine and, for a job of several, `bench comm` the
// network.
class PredictionObserver : public RunObserver {
 public:
  using RunObserver::RunObserver;
  void start(BannerFacts& facts) override {
    predict();
    if (prediction_) facts.prediction = start_text(*prediction_) + faster_;
  }
  void measure(StepRecord& rec, const StepResult&) override {
    if (prediction_ && rec.seq == run_.config.model.seq) rec.step_predicted = prediction_->seconds();
  }
  void end(EndInfo& info) override {
    double seconds = 0;
    const std::vector<Timers> means = run_.breakdown->means(seconds);
    if (!prediction_ || means.empty()) return;
    if (run_.medians.steps() > 0) info.rows.emplace_back("prediction", prediction_text(*prediction_, means, seconds));
    remember(means, seconds);
  }

 private:
  void predict();
  void remember(const std::vector<Timers>& means, double seconds) const;
  std::optional<StepPrediction> prediction_;  // of machines that were calibrated
  std::string faster_;                        // advice to its line in the start block
  MeasuredOn times_on_;                       // conditions of its times
};

void PredictionObserver::predict() {
  const RankContext& rank = run_.rank;
  const int ranks = rank.groups.local_size(), machines = (rank.mesh.shape().world() + ranks - 1) / ranks;
  if (rank.backend.kind != DeviceKind::kCpu) return;
  const CoreShare share = core_share(ranks, rank.options.threads);
  times_on_ = {rank.backend.device->describe(rank.device.index()), rank.options.precision.linear(), share.threads,
               share.together()};
  const auto times = MeasuredTimes::load(times_on_);
  if (!times) return;
  const auto predicted = [&](const EngineOptions& o) {
    return predict_step(o, rank.mesh.shape(), rank.stage_plans, *times, rank.mesh.world().backend(), share, machines);
  };
  const StepPrediction p = predicted(rank.options);
  if (!std::isfinite(p.seconds())) return;
  prediction_ = p;
  if (rank.options.schedule == "1f1b" && machines > 1) faster_ = deeper_pipeline(rank.options, p.seconds(), predicted);
}

// Corrects later predictions on this machine by what this run measured.
void PredictionObserver::remember(const std::vector<Timers>& means, double seconds) const {
  constexpr int64_t kLeastSteps = 10;
  if (run_.medians.steps() < kLeastSteps) return;
  auto times = MeasuredTimes::load(times_on_);
  if (!times) return;
  times->add_run(run_ratios(*prediction_, means, seconds));
  try {
    times->save();
  } catch (const Error& e) { fmt::print(stderr, "warning: measured times were not kept: {}\n", e.what()); }
}

class UtilizationObserver : public RunObserver {
 public:
  using RunObserver::RunObserver;
  void start(BannerFacts& facts) override {
    const std::string device = run_.rank.backend.device->describe(run_.rank.device.index());
    peak_flops_ = peak_bf16_flops(device);
    peak_fp8_ = peak_fp8_flops(device);
    ceilings_ = load_ceilings(device, run_.rank.options.precision.linear());
    facts.mfu = mfu_line(peak_flops_, ceilings_);
  }
  void measure(StepRecord& rec, const StepResult& r) override {
    const RankContext& rank = run_.rank;
    const MeshShape& mesh = rank.mesh.shape();
    const StepFlops& flops = flops_.of(rank.options, mesh.pp, run_.loader.global_tokens(), rec.seq, r.blocks);
    const double devices = static_cast<double>(mesh.world()) / rank.device.sharers();
    const double seconds = rec.step_seconds;
    rec.tflops_per_device = flops.causal / seconds / devices * 1e-12;
    rec.mfu = flops.causal / (seconds * devices * peak_flops_);
    rec.mfu_full = flops.full / (seconds * devices * peak_flops_);
    rec.hfu = flops.hardware / (seconds * devices * peak_flops_);
    if (rank.options.precision.fp8 != Fp8Recipe::kOff) rec.mfu_fp8 = flops.causal / (seconds * devices * peak_fp8_);
    if (ceilings_) rec.of_ceiling = flops.causal / (seconds * devices * ceilings_->gemm);
    executed_ += flops.hardware;
    run_.mfu_at_rate = rec.mfu / rec.tokens_per_second;
  }
  void end(EndInfo& info) override {
    std::string counted;
    if (run_.config.train.layer_drop.enabled) counted += " (all blocks counted, including dropped ones)";
    if (run_.loader.curriculum()) counted += " (attention counted at full length)";
    const double model_flops = run_.engine.spec().train_flops(run_.state->consumed_tokens);
    constexpr double kPetaflopDay = 8.64e19;
    info.rows.push_back(
        {"total FLOPs", fmt::format("{:.3e}{} = {:.3g} petaflop/s-days; executed by this process: {:.3e}", model_flops,
                                    counted, model_flops / kPetaflopDay, executed_)});
  }

 private:
  double peak_flops_ = kUnknown, peak_fp8_ = kUnknown;  // of the device
  StepFlopsCache flops_;
  std::optional<PeakRates> ceilings_;
  double executed_ = 0;  // FLOPs of this process's steps
};

// Fractions of the step, bubbles, waits; the times of the last step all of whose times are known.
class TimesObserver : public RunObserver {
 public:
  using RunObserver::RunObserver;
  void start(BannerFacts&) override {
    const MeshShape& mesh = run_.rank.mesh.shape();
    if (mesh.pp > 1) predicted_bubble_ = predict_pipeline(run_.rank.options, mesh.pp).bubble;
    run_.breakdown.emplace(is_asynchronous(*run_.rank.backend.device));
  }
  void measure(StepRecord& rec, const StepResult& r) override;
  void end_step(const StepRecord* rec, const StepResult&) override {
    if (!run_.config.log.timers || rec->step % run_.config.log.every != 0 || rec->timers_step < 0) return;
    std::string text = fmt::format("time of step {}", rec->timers_step);
    for (size_t t = 0; t < rec->timers.size(); ++t)
      if (kTimerNames[t] != nullptr && rec->timers[t] != 0)
        text += fmt::format("  {} {:.1f}", kTimerNames[t], 1e3 * rec->timers[t]);
    run_.event(text + fmt::format("  of {:.1f} ms", 1e3 * rec->timers_seconds));
  }
  void end(EndInfo& info) override {
    if (run_.medians.steps() > 0 && run_.rank.mesh.shape().pp > 1)
      info.rows.emplace_back("pipeline",
                             fmt::format("bubble {:.1f} % predicted, {:.1f} % measured{}", 100 * predicted_bubble_,
                                         100 * run_.medians.pipeline_bubble(), slowest_text()));
    if (const std::string table = run_.breakdown->table(); !table.empty()) info.rows.push_back({"time", table});
  }

 private:
  void measure_pipeline(StepRecord& rec, const StepTimes& times) const;
  std::string slowest_text() const;
  double predicted_bubble_ = kUnknown;
  DataWaitWatch data_wait_;
};

void TimesObserver::measure(StepRecord& rec, const StepResult& r) {
  const bool asynchronous = is_asynchronous(*run_.rank.backend.device);
  const double seconds = rec.step_seconds, waited = run_.loader.step().waited;
  if (run_.medians.steps() > (asynchronous ? 3 : 1)) rec.bubble = std::max(0.0, 1 - r.times.mean_busy() / seconds);
  if (run_.rank.mesh.shape().world() > 1 && !asynchronous)
    rec.exposed_comm = std::min(1.0, r.times.mean_exposed() / seconds);
  if (run_.rank.mesh.shape().pp > 1) measure_pipeline(rec, r.times);
  rec.data_wait = waited / seconds;
  if (run_.config.data.train.front().path != "mock")
    if (const auto warning = data_wait_.step(waited, seconds)) run_.warn(rec.step, *warning);
  rec.peak_bytes = resident_bytes();
  rec.longest = r.times.longest();
  const StepParts& parts = run_.breakdown->add(rec.step, r.times, rec.step_seconds);
  if (parts.step < 0 || parts.step >= rec.step) return;  // a rollback has taken that step back
  rec.timers_step = parts.step;
  rec.timers_seconds = parts.seconds;
  rec.timers = StepTimes(parts.times).mean();
}

void TimesObserver::measure_pipeline(StepRecord& rec, const StepTimes& times) const {
  const MeshShape& mesh = run_.rank.mesh.shape();
  rec.pipeline_bubble = times.pipeline_bubble();
  rec.bubble_predicted = predicted_bubble_;
  double sum = 0, most = 0;
  for (int k = 0; k < times.stages(); ++k) {
    sum += times.busy(k);
    if (times.busy(k) > most) most = times.busy(k), rec.slowest_stage = k;
  }
  if (sum > 0) rec.stage_spread = most * times.stages() / sum - 1;
  if (mesh.world() == mesh.pp) rec.slowest_rank = rec.slowest_stage;
}

// ", stage 1 computes longest: 12.1 % above the mean".
std::string TimesObserver::slowest_text() const {
  double seconds = 0, sum = 0, most = 0;
  size_t slowest = 0;
  const std::vector<Timers> means = run_.breakdown->means(seconds);
  for (size_t k = 0; k < means.size(); ++k) {
    double busy = 0;
    for (const StageTime t : {kForwardTime, kBackwardTime, kInputGradTime, kWeightGradTime, kMicrobatchTime})
      busy += means[k][t];
    sum += busy;
    if (busy > most) most = busy, slowest = k;
  }
  if (sum <= 0) return "";
  return fmt::format("; stage {} computes longest, {:.1f} % above the mean", slowest,
                     100 * (most * static_cast<double>(means.size()) / sum - 1));
}

// Mean times by pipeline rank, every log.report_every steps and at the end.
class StagesObserver : public RunObserver {
 public:
  using RunObserver::RunObserver;
  void end_step(const StepRecord* rec, const StepResult&) override {
    const int64_t every = run_.config.log.report_every;
    if (every > 0 && rec->step % every == 0) write();
  }
  void end(EndInfo&) override { write(); }

 private:
  void write() const {
    double seconds = kUnknown;
    std::vector<Timers> means = run_.breakdown->means(seconds);
    if (means.empty()) return;
    run_.log->push(StagesRecord{.step = run_.state->step,
                                .time = wall_seconds(),
                                .step_seconds = seconds,
                                .stages = std::make_shared<const std::vector<Timers>>(std::move(means))});
  }
};

}  // namespace

template <class T>
std::unique_ptr<RunObserver> on_rank0(RunView& run) {
  return run.rank.is_rank0() ? std::make_unique<T>(run) : nullptr;
}

std::unique_ptr<RunObserver> observe_times(RunView& run) { return on_rank0<TimesObserver>(run); }
std::unique_ptr<RunObserver> observe_prediction(RunView& run) { return on_rank0<PredictionObserver>(run); }
std::unique_ptr<RunObserver> observe_utilization(RunView& run) { return on_rank0<UtilizationObserver>(run); }
std::unique_ptr<RunObserver> observe_stages(RunView& run) { return on_rank0<StagesObserver>(run); }

}  // namespace gt
