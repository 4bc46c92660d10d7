// Dynamic loss scaling (Micikevicius et al. 2018): the loss is multiplied by a scale so that small gradients do not
// underflow in fp16. A step whose gradients overflow is skipped and reduces the scale; a run of clean steps raises it.
// One algorithm, with parameters for DeepSpeed, apex, Megatron and PyTorch. Independent of gradients and ranks.
#pragma once
#include <array>
#include <cstdint>

namespace gt {

// Above this, the factor that unscales a gradient would be subnormal in f32.
constexpr double kMostLossScale = 1e28;

// The scale is doubled and halved. "Clean" step: all gradients were finite.
struct LossScaleOptions {
  bool dynamic = false;    // false: `init` throughout; overflowing steps are still skipped
  double init = 1;         // of the first step
  int64_t window = 1000;   // clean steps until the scale doubles
  int64_t delta = 1;       // clean steps after an overflow (and at the start) not counted in the window
  int64_t hysteresis = 2;  // overflows until the scale halves; restored when it doubles
  double min = 1, max = kMostLossScale;
  bool consecutive = false;  // a clean step restores the hysteresis
};

// DeepSpeed 0.19.6 and 0.16.5 (DynamicLossScaler), apex (LossScaler), Megatron-LM (DynamicGradScaler), PyTorch
// (GradScaler).
enum class LossScaleProfile : uint8_t { kDeepSpeed, kDeepSpeed016, kApex, kMegatron, kTorch };
constexpr std::array<const char*, 5> names_of(LossScaleProfile) {
  return {"deepspeed", "deepspeed-0.16", "apex", "megatron", "torch"};
}

LossScaleOptions loss_scale_profile(LossScaleProfile);  // dynamic scaling with the profile's parameters

struct LossScaleState {
  double scale = 1;
  int64_t clean = 0;       // steps since the last overflow
  int64_t hysteresis = 1;  // overflows left until the scale halves
  friend bool operator==(const LossScaleState&, const LossScaleState&) = default;
};

class LossScaler {
 public:
  explicit LossScaler(const LossScaleOptions& o) : options_(o), state_{o.init, 0, o.hysteresis} {}
  double scale() const { return state_.scale; }
  // Call after the step that used scale() was applied (clean) or skipped (overflow):
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
