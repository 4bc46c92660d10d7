// GELU and its derivative on the device.
#pragma once

namespace gt::cuda {

// Tanh form (Hendrycks & Gimpel 2016): 0.5 x (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3).
constexpr float kRootTwoOverPi = 0.7978845608028654f, kCubic = 0.044715f;

__device__ inline float gelu_of(float x) {
  return 0.5f * x * (1.0f + tanhf(kRootTwoOverPi * (x + kCubic * x * x * x)));
}

__device__ inline float gelu_slope(float x) {
  const float t = tanhf(kRootTwoOverPi * (x + kCubic * x * x * x));
  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * kRootTwoOverPi * (1.0f + 3.0f * kCubic * x * x);
}

}  // namespace gt::cuda
