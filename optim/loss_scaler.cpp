#include "optim/loss_scaler.h"

#include <algorithm>
#include <cstddef>

namespace gt {
namespace {

constexpr double kNone = kMostLossScale;  // no upper limit: fp16 overflows long before

// In the order of LossScaleProfile.
constexpr LossScaleOptions kProfiles[] = {
    {true, 0x1p16, 1000, 1, 2, 1, 0x1p24},  // DeepSpeed 0.19.6
    {true, 0x1p16, 1000, 0, 2, 1, kNone},   // DeepSpeed 0.16.5
    {true, 0x1p16, 2000, 0, 1, 1, 0x1p24},  // apex
    {true, 0x1p32, 1000, 0, 2, 1, kNone},   // Megatron-LM
    {true, 0x1p16, 2000, 0, 1, 1, kNone},   // PyTorch
};

}  // namespace

LossScaleOptions loss_scale_profile(LossScaleProfile p) { return kProfiles[static_cast<size_t>(p)]; }

void LossScaler::update(bool overflow) {
  if (!options_.dynamic) return;
  LossScaleState& s = state_;
  if (overflow) {
    s.clean = 0;
    if (s.hysteresis > 1)
      --s.hysteresis;
    else
      s.scale = std::max(s.scale / 2, options_.min);
    return;
  }
  ++s.clean;
  if (options_.consecutive) s.hysteresis = options_.hysteresis;
  if (s.clean > options_.delta && (s.clean - options_.delta) % options_.window == 0) {
    s.scale = std::min(s.scale * 2, options_.max);
    s.hysteresis = options_.hysteresis;
  }
}

}  // namespace gt
