// Activations and their derivatives (device code).
#pragma once
#include <cmath>

namespace gt::cuda {

// Tanh form (Hendrycks & Gimpel 2016): 0.5 x (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3).
constexpr float kRootTwoOverPi = 0.7978845608028654f, kCubic = 0.044715f;

constexpr float kLog2e = 1.4426950408889634f;

// 1 / (1 + 2^w), accurate to about 1e-6. Two special-function-unit instructions; tanhf takes 34, which would make
// memory-bound kernels compute-bound. Branch-free: 2^w may be infinite.
__device__ inline float gate_of(float w) {
#ifdef __CUDA_ARCH__
  float power, gate;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(w));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(gate) : "f"(1.0f + power));
  return gate;
#else
  return 1.0f / (1.0f + exp2f(w));
#endif
}

// 0.5 (1 + tanh(u)) = 1 / (1 + e^-2u).
__device__ inline float gelu_gate(float x) {
  constexpr float kTurn = -2.0f * kLog2e * kRootTwoOverPi;  // e^-2u = 2^w
  return gate_of(x * fmaf(kTurn * kCubic, x * x, kTurn));
}

__device__ inline float gelu_of(float x) { return x * gelu_gate(x); }

// With the gate s: s + x s (1 - s) 2u', u' = sqrt(2/pi) (1 + 3 * 0.044715 x^2). s (1 - s) is 0 where x^2 overflows.
__device__ inline float gelu_slope(float x) {
  const float s = gelu_gate(x), t = x * s, square = fminf(x * x, 1e30f);
  return fmaf(fmaf(-t, s, t), 2.0f * kRootTwoOverPi * fmaf(3.0f * kCubic, square, 1.0f), s);
}

__device__ inline float silu_of(float x) { return x * gate_of(-kLog2e * x); }
// With the gate s: s + x s (1 - s).
__device__ inline float silu_slope(float x) {
  const float s = gate_of(-kLog2e * x), t = x * s;
  return fmaf(-t, s, t) + s;
}

// GELU by erf: x Phi(x), slope Phi(x) + x phi(x). Clamped where Phi is 0 in f32, so that -inf gives 0.
__device__ inline float normal_share(float x) { return 0.5f * erfcf(-0.70710678118654752f * x); }
__device__ inline float gelu_erf_of(float x) { return (x < -16.0f ? -16.0f : x) * normal_share(x); }
__device__ inline float gelu_erf_slope(float x) {
  const float c = x < -16.0f ? -16.0f : x > 16.0f ? 16.0f : x;
  return fmaf(c * 0.39894228040143268f, expf(-0.5f * c * c), normal_share(c));
}

__device__ inline float soft_cap_of(float x, float cap) { return cap * tanhf(x / cap); }

__device__ inline float relu_of(float x) { return x <= 0.0f ? 0.0f : x; }  // NaN stays

}  // namespace gt::cuda
