// Statistics of tensors: trust ratios of log.lamb_every, norms of log.norms_every, histograms of log.histograms_every.
#include <cmath>

#include "kernels/core/host.h"
#include "launch/observe/param_stats.h"
#include "launch/observe/trust_ratio_log.h"
#include "launch/train/observers/run_observer.h"

namespace gt {
namespace {

bool due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

// Every rank has the ratios of its stage, rank 0 logs them all.
class TrustRatioObserver : public RunObserver {
 public:
  using RunObserver::RunObserver;
  void before_record() override {
    const int64_t step = run_.state->step;
    if (!due(run_.config.log.lamb_every, step)) return;
    const std::vector<TrustRatio> mine = run_.engine.optimizer().trust_ratios(run_.rank.stream);
    if (!ratios_) ratios_ = std::make_unique<TrustRatioLog>(mine, run_.rank.mesh.world());
    for (const TrustRatio& r : ratios_->gather(mine))
      if (run_.log) run_.log->push(make_scalar(step, "train/lamb_coeff/" + r.tensor, static_cast<double>(r.ratio)));
  }

 private:
  std::unique_ptr<TrustRatioLog> ratios_;
};

// Gradient norms by FSDP unit, norms of parameters and update, histograms. Its time is no part of a step.
class NormObserver : public RunObserver {
 public:
  explicit NormObserver(RunView& run) : RunObserver(run), stats_(run.engine, run.rank.backend, run.rank.stream) {}
  void begin_step(int64_t step) override {
    if (!measures(step)) return;
    const double begin = now();
    stats_.before_step();
    run_.step_ended += now() - begin;
  }
  void end_step(const StepRecord*, const StepResult& r) override {
    const int64_t step = run_.state->step;
    if (!measures(step)) return;
    const double begin = now();
    const ParamStats::Summary s =
        stats_.after_step(step, due(run_.config.log.histograms_every, step), 1 / r.loss_scale);
    if (run_.log) write(s, step, r.loss_scale);
    run_.step_ended += now() - begin;
  }

 private:
  bool measures(int64_t step) const {
    return due(run_.config.log.norms_every, step) || due(run_.config.log.histograms_every, step);
  }
  void write(const ParamStats::Summary& s, int64_t step, double loss_scale) const {
    if (due(run_.config.log.norms_every, step)) {
      const std::span<const double> squares = run_.engine.unit_norm_squares();
      const std::vector<UnitEntry>& units = run_.engine.spec().units;
      for (size_t u = 0; u < units.size(); ++u)
        run_.log->push(make_scalar(step, "train/grad_norm/" + units[u].name, std::sqrt(squares[u]) / loss_scale));
      run_.log->push(make_scalar(step, "train/param_norm", s.param_norm));
      run_.log->push(make_scalar(step, "train/update_ratio", s.update_norm / s.param_norm));
    }
    for (const HistogramRecord& h : s.histograms) run_.log->push(h);
    if (!s.histograms.empty()) run_.log->push(make_scalar(step, "hist/nonfinite", s.nonfinite));
  }
  ParamStats stats_;
};

}  // namespace

std::unique_ptr<RunObserver> observe_trust_ratios(RunView& run) {
  return run.config.log.lamb_every > 0 ? std::make_unique<TrustRatioObserver>(run) : nullptr;
}
std::unique_ptr<RunObserver> observe_norms(RunView& run) {
  const LogConfig& c = run.config.log;
  return c.norms_every > 0 || c.histograms_every > 0 ? std::make_unique<NormObserver>(run) : nullptr;
}

}  // namespace gt
