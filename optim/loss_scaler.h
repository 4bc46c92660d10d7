// Dynamic loss scaling (Micikevicius et al. 2018): the loss is multiplied by a scale so that small gradients do not
// become 0 in fp16; a step whose gradients overflow is skipped and shrinks it, a run of clean steps makes it grow. One
// rule with the parameters that DeepSpeed, apex, Megatron and PyTorch have. Pure: knows no gradients, no ranks.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace gt {

// Beyond this the factor that takes the scale out of a gradient would be no normal float any more.
constexpr double kMostLossScale = 1e28;

// Scales double and halve. "Clean": all gradients of the step were finite.
struct LossScaleOptions {
  bool dynamic = false;      // false: `init` for good; overflows are skipped all the same
  double init = 1;           // of the first step
  int64_t window = 1000;     // clean steps to a doubling
  int64_t delta = 1;         // clean steps after an overflow (and at the start) that the window does not count
  int64_t hysteresis = 2;    // overflows to a halving, until the next doubling
  double min = 1, max = kMostLossScale;
  bool consecutive = false;  // a clean step restores the hysteresis
};

std::vector<std::string> loss_scale_profiles();  // deepspeed (0.19), deepspeed-0.16, apex, megatron, torch

// Dynamic scaling with the parameters of a profile. Throws kUsage on an unknown name, listing the known ones.
LossScaleOptions loss_scale_profile(const std::string& name);

struct LossScaleState {
  double scale = 1;
  int64_t clean = 0;       // steps since the last overflow
  int64_t hysteresis = 1;  // overflows left to a halving
  friend bool operator==(const LossScaleState&, const LossScaleState&) = default;
};

class LossScaler {
 public:
  explicit LossScaler(const LossScaleOptions& o) : options_(o), state_{o.init, 0, o.hysteresis} {}
  double scale() const { return state_.scale; }
  // After the step that used scale() was applied (clean) or skipped (overflow):
  //   overflow: clean = 0; hysteresis > 1 ? hysteresis -= 1 : scale = max(scale / 2, min)
  //   clean:    clean += 1; beyond delta, every `window` steps: scale = min(2 scale, max), hysteresis is restored
  void update(bool overflow);
  const LossScaleOptions& options() const { return options_; }
  const LossScaleState& state() const { return state_; }
  void restore(const LossScaleState& s) { state_ = s; }

 private:
  LossScaleOptions options_;
  LossScaleState state_;
};

}  // namespace gt
