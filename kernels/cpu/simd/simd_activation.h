// MLP activations, gated or not, and their gradients; part of every simd_table.h.
#pragma once
#include <type_traits>

#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/simd/simd_elementwise.h"
#include "kernels/cpu/simd/vec.h"

namespace gt::cpu {
namespace {

// f(x) and df/dx of one vector of elements.
struct Activated {
  Vec value, slope;
};

// min and max return their second argument when it is NaN.
inline Vec clamp(Vec x, float limit) { return max(splat(-limit), min(splat(limit), x)); }

// 2^x for |x| < 126, relative error below 2e-7 (Cephes exp2f). NaN gives anything.
inline Vec exp2_near(Vec x) {
  const Vec magic = splat(12582912.0f), shifted = x + magic, r = x - (shifted - magic);  // see exp()
  Vec p = fma(splat(1.535336188e-4f), r, splat(1.339887440e-3f));
  p = fma(p, r, splat(9.618437358e-3f));
  p = fma(p, r, splat(5.550332471e-2f));
  p = fma(p, r, splat(2.402264791e-1f));
  p = fma(p, r, splat(6.931472029e-1f));
  p = fma(p, r, splat(1.0f));
  return (Vec)((VecInt)p + ((VecInt)shifted << 23));
}

// x sigmoid(z) for increasing z(x) with derivative dz; t = -z log2 e, between -126 and 126, where all results are
// normal numbers: others are slow. Slope: s + x s (1 - s) dz, with 1 - s = e s to avoid cancellation. Beyond the limit,
// up to which z is exact, the sigmoid is taken for 0 or 1, and x is clamped.
inline Activated sigmoid_parts(Vec x, Vec t, Vec dz, float limit) {
  const Vec e = exp2_near(t), s = reciprocal(splat(1.0f) + e), low = max(splat(-limit), x);
  return {low * s, fma(clamp(x, limit) * (e * s) * s, dz, s)};
}

inline Activated gelu_parts(Vec x) {
  constexpr float kTwoRoots = 2 * 0.7978845608028654f, kCubic = 0.044715f, kLimit = 9.5f;
  const Vec c = clamp(x, kLimit), square = c * c;
  const Vec t = c * fma(splat(-kLog2E * kTwoRoots * kCubic), square, splat(-kLog2E * kTwoRoots));
  return sigmoid_parts(x, t, fma(splat(3 * kTwoRoots * kCubic), square, splat(kTwoRoots)), kLimit);
}
inline Activated silu_parts(Vec x) {
  constexpr float kLimit = 87.0f;
  return sigmoid_parts(x, clamp(x, kLimit) * splat(-kLog2E), splat(1.0f), kLimit);
}
inline Activated relu2_parts(Vec x) {
  const Vec r = x <= Vec{} ? Vec{} : x;  // keeps NaN
  return {r * r, r + r};
}

inline Activated tanh_parts(Vec x) {
  const Vec t = tanh(x);
  return {t, splat(1.0f) - t * t};
}

// out = f(gate) up, or f(gate) without `up` (nullptr). All arrays f32 [n].
template <Activated (*kParts)(Vec)>
void activate_n(const float* gate, const float* up, float* out, int64_t n) {
  sweep(n, [=](int64_t i, auto lanes) {
    prefetch(gate + i), prefetch_result(out + i);
    const Vec y = kParts(lanes.load(gate + i)).value;
    lanes.store(out + i, up != nullptr ? y * lanes.load(up + i) : y);
  });
}

// dgate = dout up f'(gate) and, unless dup is nullptr, dup = dout f(gate). All arrays f32 [n].
template <Activated (*kParts)(Vec)>
void activate_grad_n(const float* gate, const float* up, const float* dout, float* dgate, float* dup, int64_t n) {
  sweep(n, [=](int64_t i, auto lanes) {
    prefetch(gate + i), prefetch(dout + i), prefetch_result(dgate + i);
    const Activated a = kParts(lanes.load(gate + i));
    const Vec d = lanes.load(dout + i), u = up != nullptr ? lanes.load(up + i) : splat(1.0f);
    lanes.store(dgate + i, d * u * a.slope);
    if (dup != nullptr) lanes.store(dup + i, d * a.value);
  });
}

// GELU and its gradient in GEMMs of bf16, bitwise what activate and activate_grad give with a rounding after. Only the
// gradient reads `rounded`: whole vectors of it are written past the caches if they are aligned.
void gelu_bf16_n(const float* z, uint16_t* rounded, uint16_t* out, int64_t n) {
  const bool streams = reinterpret_cast<uintptr_t>(rounded) % sizeof(VecU16) == 0;
  sweep(n, [=](int64_t i, auto lanes) {
    const VecU16 x = to_bf16(lanes.load(z + i));
    if (std::is_same_v<decltype(lanes), Whole> && streams)
      stream(rounded + i, x);
    else
      store_some(rounded + i, x, lanes);
    store_some(out + i, to_bf16(gelu_parts(from_bf16(x)).value), lanes);
  });
}
void gelu_grad_bf16_n(const uint16_t* z, const float* dout, uint16_t* dz, int64_t n) {
  sweep(n, [=](int64_t i, auto lanes) {
    const Vec slope = gelu_parts(from_bf16(load_some<VecU16>(z + i, lanes))).slope;
    store_some(dz + i, to_bf16(lanes.load(dout + i) * slope), lanes);
  });
}

}  // namespace
}  // namespace gt::cpu
