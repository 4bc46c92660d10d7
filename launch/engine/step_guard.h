// Anomalous steps. A step whose loss or gradient norm is not finite is always skipped. After several in a row the run
// loads an older checkpoint and skips the batches around them. A spike, a loss or norm far above that of recent steps,
// is reported and applied, as in other trainers, unless SpikeAction is set otherwise.
//
// Under kSkip with clipping, gradient norms alone never end a run: small models have norms that jump tenfold and return
// while the loss is unchanged. After `bad_steps` of them in a row the update is applied, and the window of norms
// restarts. Input is equal on every rank, so all ranks decide alike.
#pragma once
#include <cstdint>
#include <limits>
#include <string>

#include "launch/config/values/guard_options.h"

namespace gt {

// Anomaly limits of a step, evaluated before its update (kernels/core/step_limits.h). No limit by default.
struct StepLimits {
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double loss_middle = 0, loss_spread = 1, norm_middle = 0, norm_spread = 1;
  double most = kInfinity;  // spreads above the middle that are still normal; -infinity: every step is anomalous
};

// The last 128 values of accepted steps. Median and deviation are computed from the values or, for gradient norms, from
// their logarithms, which are closer to a normal distribution.
class SpikeWindow {
 public:
  static constexpr int kSize = 128;
  enum class Scale : uint8_t { kLinear, kLog };
  explicit SpikeWindow(Scale scale) : scale_(scale) {}

  // Returns (value - median) / spread; 0 until the window is full. Above `most`: the value is a spike.
  double z(double value, double most) const;
  double median() const;  // of a full window; else 0
  // Returns the unit of z; infinite until the window is full. Let s = max(1.4826 median |v - m|, 0.001 |m|, 1e-12). The
  // linear spread is s. On the logarithmic scale m is the median of ln v, and s is at least 0.001. The spread is then
  // (exp(m + most s) - exp(m)) / most, so that `most` spreads above the median are `most` deviations s above m.
  double spread(double most) const;
  void add(double value) { values_[static_cast<size_t>(count_++ % kSize)] = value; }
  bool full() const { return count_ >= kSize; }
  int64_t held() const { return count_ < kSize ? count_ : kSize; }
  double at(int64_t k) const;  // k = 0: the oldest
  void clear() { count_ = 0; }

 private:
  Scale scale_;
  std::array<double, kSize> values_{};
  int64_t count_ = 0;
};

class StepGuard {
 public:
  explicit StepGuard(const GuardOptions& options) : options_(options) {}

  // Limits of the next step. With them its update is skipped exactly if check() returns true for its loss and norm.
  StepLimits limits() const;
  // Records a completed step, applied or skipped. Returns whether its update must have been skipped.
  // `overflow_is_normal`: a loss scaler is searching for its scale, so non-finite gradients under a finite loss are not
  // anomalous.
  bool check(double loss, double grad_norm, bool overflow_is_normal = false);

  // State after the last call of check().
  bool bad() const { return bad_; }
  bool finite() const { return finite_; }
  bool skipped() const { return skipped_; }
  bool needs_rollback() const { return needs_rollback_; }
  bool relearns() const { return relearns_; }             // applied although its norm is a spike, like earlier ones
  int64_t spikes_taken() const { return spikes_taken_; }  // finite anomalous steps that were applied
  std::string reason() const;  // "loss 9.1 is 7.3 deviations above the median 4.2 of the last 128 steps"

  // Counts a rollback that begins; returns false if there were too many. The caller then restores the window from the
  // checkpoint, which keeps the count.
  bool count_rollback();
  int64_t rollbacks() const { return rollbacks_; }

  // Returns {"loss": [hexadecimal floats, oldest first], "grad_norm": [...], "consecutive", "rollbacks", "good",
  // "norms_only", "spikes_taken"}; "" in the initial state.
  std::string json() const;
  void restore(const std::string& json, bool keep_rollbacks = false);

 private:
  static constexpr int64_t kGoodSteps = 1000;  // consecutive normal steps that reset the rollback count
  void accept();
  bool handle_anomaly();
  bool may_relearn() const;  // whether the next step is applied if it is anomalous by its norm alone

  const GuardOptions options_;
  SpikeWindow losses_{SpikeWindow::Scale::kLinear}, norms_{SpikeWindow::Scale::kLog};
  int64_t consecutive_ = 0, rollbacks_ = 0, good_ = 0, spikes_taken_ = 0;
  bool norms_only_ = true;  // all of `consecutive_` are finite steps with a normal loss
  bool bad_ = false, finite_ = true, skipped_ = false, needs_rollback_ = false, relearns_ = false;
  double loss_ = 0, norm_ = 0, loss_z_ = 0, norm_z_ = 0, loss_median_ = 0, norm_median_ = 0;
};

// Returns the sample ordinals [first, last) that a rollback skips: `batches` global batches around the step whose
// samples begin at `bad_sample`.
std::pair<int64_t, int64_t> skip_window(int64_t bad_sample, int64_t global_batch, int64_t batches);

}  // namespace gt
