// Bad steps: a loss or gradient norm that is not finite, or far above those of the steps before. The update of a bad
// step is left out; several in a row, and the run goes back to an older checkpoint and passes over the batches that did
// it. Gradient norms alone, under a loss as before, never end a run where clipping bounds the update: small models have
// norms that jump tenfold and come back while the loss stands still. As many of them in a row, and the last is taken;
// the window of norms begins anew from it. Fed with numbers that are equal on every rank, so all ranks decide alike.
// Knows no files and no ranks.
#pragma once
#include <array>
#include <cstdint>
#include <limits>
#include <string>

namespace gt {

enum class SpikeAction : uint8_t { kSkip, kRollback, kWarn, kOff };
SpikeAction spike_action_from(const std::string&);  // "skip", "rollback", "warn", "off"

struct GuardOptions {
  double spike_z = 6;
  SpikeAction action = SpikeAction::kSkip;
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

// The last 128 values of accepted steps. z of a new one: (value - median) / spread; 0 until the window is full.
class SpikeWindow {
 public:
  static constexpr int kSize = 128;
  double z(double value) const;
  double median() const;  // of a full window; 0 before
  double spread() const;  // max(1.4826 x median of |v - median|, 0.001 |median|, 1e-12); infinite before
  void add(double value) { values_[static_cast<size_t>(count_++ % kSize)] = value; }
  bool full() const { return count_ >= kSize; }
  int64_t held() const { return count_ < kSize ? count_ : kSize; }
  double at(int64_t k) const;  // k = 0: the oldest

 private:
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
  bool relearns() const { return relearns_; }  // taken although its norm is a spike, like those before it
  std::string reason() const;  // "loss 9.1 is 7.3 deviations above the median 4.2 of the last 128 steps"

  // A rollback begins: false when there were too many. The caller restores the window of the checkpoint next, which
  // leaves the count alone.
  bool count_rollback();
  int64_t rollbacks() const { return rollbacks_; }

  // {"loss": [hexadecimal floats, oldest first], "grad_norm": [...], "consecutive", "rollbacks", "good", "norms_only"};
  // "" is fresh.
  std::string json() const;
  void restore(const std::string& json, bool keep_rollbacks = false);

 private:
  static constexpr int64_t kGoodSteps = 1000;  // that many in a row and the rollbacks are forgotten
  void accept();
  bool judge_bad();
  bool may_relearn() const;  // if the next step is bad by its norm alone, it is taken

  const GuardOptions options_;
  SpikeWindow losses_, norms_;
  int64_t consecutive_ = 0, rollbacks_ = 0, good_ = 0;
  bool norms_only_ = true;  // all of `consecutive_`: finite, the loss as before
  bool bad_ = false, finite_ = true, skipped_ = false, wants_rollback_ = false, relearns_ = false;
  double loss_ = 0, norm_ = 0, loss_z_ = 0, norm_z_ = 0;
};

// Ordinals [first, last) that a rollback from the step whose samples begin at `bad_sample` leaves out: `batches` global
// batches around it.
std::pair<int64_t, int64_t> skip_window(int64_t bad_sample, int64_t global_batch, int64_t batches);

}  // namespace gt
