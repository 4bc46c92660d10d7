// Which activation: values and derivatives by kind (device code), and the choice of a kernel by kind.
#pragma once
#include <type_traits>

#include "kernels/cuda/activation.cuh"
#include "kernels/ops.h"

namespace gt::cuda {

template <Activation A>
__device__ inline float value_of(float x) {
  if constexpr (A == Activation::kGelu) return gelu_of(x);
  if constexpr (A == Activation::kSilu) return silu_of(x);
  if constexpr (A == Activation::kGeluErf) return gelu_erf_of(x);
  if constexpr (A == Activation::kTanh) return tanhf(x);
  return relu_of(x) * relu_of(x);
}
template <Activation A>
__device__ inline float slope_of(float x) {
  if constexpr (A == Activation::kGelu) return gelu_slope(x);
  if constexpr (A == Activation::kSilu) return silu_slope(x);
  if constexpr (A == Activation::kGeluErf) return gelu_erf_slope(x);
  if constexpr (A == Activation::kTanh) {
    const float t = tanhf(x);
    return 1.0f - t * t;
  }
  return 2.0f * relu_of(x);
}

// Calls f(std::integral_constant<Activation, A>).
template <class F>
void by_activation(const char* op, Activation a, F&& f) {
  switch (a) {
    case Activation::kGelu: return f(std::integral_constant<Activation, Activation::kGelu>{});
    case Activation::kSilu: return f(std::integral_constant<Activation, Activation::kSilu>{});
    case Activation::kRelu2: return f(std::integral_constant<Activation, Activation::kRelu2>{});
    case Activation::kGeluErf: return f(std::integral_constant<Activation, Activation::kGeluErf>{});
    case Activation::kTanh: return f(std::integral_constant<Activation, Activation::kTanh>{});
    default: GT_CHECK(false, op, ": activation ", static_cast<int>(a));
  }
}

}  // namespace gt::cuda
