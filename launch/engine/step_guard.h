// Bad steps. A step whose loss or gradient norm is not finite is always left out; several in a row, and the run loads
// an older checkpoint and skips the batches around them. A spike, a loss or norm far above those of the steps before,
// is reported and taken, as in any other trainer; SpikeAction says otherwise.
//
// Under kSkip, gradient norms alone never end a run where clipping bounds the update: small models have norms that jump
// tenfold and return while the loss stands still. After `bad_steps` of them in a row the update is taken, and the
// window of norms starts anew. Input is equal on every rank, so all ranks decide alike.
#pragma once
#include <array>
#include <cstdint>
#include <limits>
#include <string>

namespace gt {

enum class SpikeAction : uint8_t {
  kSkip,      // leave the update out; bad_steps in a row: roll back
  kRollback,  // roll back at the first one
  kWarn,      // report it, take the update
  kOff,       // do not look
};
SpikeAction spike_action_from(const std::string&);  // "skip", "rollback", "warn", "off"

struct GuardOptions {
  double spike_z = 6;
  SpikeAction action = SpikeAction::kWarn;
  int64_t bad_steps = 3;      // in a row: roll back
  int64_t max_rollbacks = 3;  // the next request ends the run
  bool clipped = true;        // the update is bounded whatever the gradient norm
};

// What a step is judged by before its update (kernels/core/step_limits.h). Nothing is far by default.
struct StepLimits {
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double loss_middle = 0, loss_spread = 1, norm_middle = 0, norm_spread = 1;
  double most = kInfinity;  // spreads above the middle that are not bad yet; -infinity: every step is bad
};

// The last 128 values of accepted steps. Median and deviation are those of the values, or of their logarithms: gradient
// norms are not normal, their logarithms nearly are.
class SpikeWindow {
 public:
  static constexpr int kSize = 128;
  enum class Scale : uint8_t { kLinear, kLog };
  explicit SpikeWindow(Scale scale) : scale_(scale) {}

  // (value - median) / spread; 0 until the window is full. Above `most`: the value is a spike.
  double z(double value, double most) const;
  double median() const;  // of a full window; 0 before
  // Units of z, infinite until the window is full. With s = max(1.4826 median |v - m|, 0.001 |m|, 1e-12): s on the
  // linear scale. On the logarithmic one m is the median of ln v, s at least 0.001, and the spread is
  // (exp(m + most s) - exp(m)) / most, so that `most` spreads above the median lie `most` deviations s above m.
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

  // Of the step to come: by these its update is left out exactly if judge() says so of its loss and norm.
  StepLimits limits() const;
  // A step and its update, left out or not, are over. True: it was to be left out. `overflow_is_normal`: a loss scaler
  // looks for the scale, a gradient that is not finite under a finite loss is its business.
  bool judge(double loss, double grad_norm, bool overflow_is_normal = false);

  // Of the last judged step.
  bool bad() const { return bad_; }
  bool finite() const { return finite_; }
  bool skipped() const { return skipped_; }
  bool wants_rollback() const { return wants_rollback_; }
  bool relearns() const { return relearns_; }             // taken although its norm is a spike, like those before it
  int64_t spikes_taken() const { return spikes_taken_; }  // finite bad steps since the start whose update was taken
  std::string reason() const;  // "loss 9.1 is 7.3 deviations above the median 4.2 of the last 128 steps"

  // A rollback begins: false when there were too many. The caller restores the window of the checkpoint next, which
  // leaves the count alone.
  bool count_rollback();
  int64_t rollbacks() const { return rollbacks_; }

  // {"loss": [hexadecimal floats, oldest first], "grad_norm": [...], "consecutive", "rollbacks", "good", "norms_only",
  // "spikes_taken"}; "" is fresh.
  std::string json() const;
  void restore(const std::string& json, bool keep_rollbacks = false);

 private:
  static constexpr int64_t kGoodSteps = 1000;  // that many in a row and the rollbacks are forgotten
  void accept();
  bool judge_bad();
  bool may_relearn() const;  // if the next step is bad by its norm alone, it is taken

  const GuardOptions options_;
  SpikeWindow losses_{SpikeWindow::Scale::kLinear}, norms_{SpikeWindow::Scale::kLog};
  int64_t consecutive_ = 0, rollbacks_ = 0, good_ = 0, spikes_taken_ = 0;
  bool norms_only_ = true;  // all of `consecutive_`: finite, the loss as before
  bool bad_ = false, finite_ = true, skipped_ = false, wants_rollback_ = false, relearns_ = false;
  double loss_ = 0, norm_ = 0, loss_z_ = 0, norm_z_ = 0, loss_median_ = 0, norm_median_ = 0;
};

// Ordinals [first, last) that a rollback from the step whose samples begin at `bad_sample` leaves out: `batches` global
// batches around it.
std::pair<int64_t, int64_t> skip_window(int64_t bad_sample, int64_t global_batch, int64_t batches);

}  // namespace gt
