#include "optim/loss_scaler.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace gt {
namespace {

constexpr double kNone = kMostLossScale;  // no upper limit: fp16 overflows long before

struct Profile {
  const char* name;
  double init;
  int64_t window, delta, hysteresis;
  double min, max;
};
// DeepSpeed 0.19.6 and 0.16.5 (DynamicLossScaler), apex (LossScaler), Megatron-LM (DynamicGradScaler), PyTorch
// (GradScaler).
constexpr Profile kProfiles[] = {
    {"deepspeed", 0x1p16, 1000, 1, 2, 1, 0x1p24}, {"deepspeed-0.16", 0x1p16, 1000, 0, 2, 1, kNone},
    {"apex", 0x1p16, 2000, 0, 1, 1, 0x1p24},      {"megatron", 0x1p32, 1000, 0, 2, 1, kNone},
    {"torch", 0x1p16, 2000, 0, 1, 1, kNone},
};

}  // namespace

std::vector<std::string> loss_scale_profiles() {
  std::vector<std::string> out;
  for (const Profile& p : kProfiles) out.emplace_back(p.name);
  return out;
}

LossScaleOptions loss_scale_profile(const std::string& name) {
  std::string known;
  for (const Profile& p : kProfiles) {
    if (name == p.name)
      return {.dynamic = true,
              .init = p.init,
              .window = p.window,
              .delta = p.delta,
              .hysteresis = p.hysteresis,
              .min = p.min,
              .max = p.max};
    known += std::string(known.empty() ? "" : ", ") + p.name;
  }
  fail(Exit::kUsage, "precision.loss_scale_profile: unknown \"", name, "\"; there are ", known);
}

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
