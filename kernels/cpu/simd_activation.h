// MLP activations, gated or not, and their gradients; body of simd_{scalar,avx2,avx512}.cpp.
#pragma once
#include "kernels/cpu/simd.h"
#include "kernels/cpu/vec.h"

namespace gt::cpu {
namespace {

// f(x) and df/dx of one vector of elements.
struct Activated {
  Vec value, slope;
};

// min and max return their second argument when it is NaN.
inline Vec clamp(Vec x, float limit) { return max(splat(-limit), min(splat(limit), x)); }

// x sigmoid(z) for increasing z(x) with derivative dz. Slope: s + x s (1 - s) dz, with 1 - s = e s to avoid
// cancellation. Beyond the limit the sigmoid is 0 or 1 in f32, and x is clamped.
inline Activated sigmoid_parts(Vec x, Vec z, Vec dz, float limit) {
  const Vec e = exp(-z), s = splat(1.0f) / (splat(1.0f) + e), low = max(splat(-limit), x);
  return {low * s, fma(clamp(x, limit) * (e * s) * s, dz, s)};
}

inline Activated gelu_parts(Vec x) {
  constexpr float kTwoRoots = 2 * 0.7978845608028654f, kCubic = 0.044715f;
  const Vec c = clamp(x, 16.0f), square = c * c;
  return sigmoid_parts(x, splat(kTwoRoots) * (c + splat(kCubic) * (square * c)),
                       splat(kTwoRoots) * (splat(1.0f) + splat(3 * kCubic) * square), 16.0f);
}
inline Activated silu_parts(Vec x) { return sigmoid_parts(x, clamp(x, 88.0f), splat(1.0f), 88.0f); }
inline Activated relu2_parts(Vec x) {
  const Vec r = x <= Vec{} ? Vec{} : x;  // keeps NaN
  return {r * r, r + r};
}

// Horner's rule, the highest power first.
template <int N>
inline Vec polynomial(Vec x, const float (&c)[N]) {
  Vec p = splat(c[0]);
  for (int i = 1; i < N; ++i) p = fma(p, x, splat(c[i]));
  return p;
}

// GELU by erf: x Phi(x), slope Phi(x) + x phi(x). erf and erfc as in Cephes' ndtrf.c: an odd polynomial up to 1, beyond
// it e^-u^2 times a polynomial in 1/u^2; relative error below 4e-7. Phi is 0 or 1 in f32 beyond the limit, where x is
// clamped.
inline Activated gelu_erf_parts(Vec x) {
  constexpr float kErf[] = {7.853861353153693e-5f,  -8.010193625184903e-4f, 5.188327685732524e-3f,
                            -2.685381193529856e-2f, 1.128358514861418e-1f,  -3.761262582423300e-1f,
                            1.128379165726710e+0f};
  constexpr float kNear[] = {2.326819970068386e-2f,  -1.387039388740657e-1f, 3.687424674597105e-1f,
                             -5.824733027278666e-1f, 6.210004621745983e-1f,  -4.944515323274145e-1f,
                             3.404879937665872e-1f,  -2.741127028184656e-1f, 5.638259427386472e-1f};
  constexpr float kFar[] = {-1.047766399936249e+1f, 1.297719955372516e+1f,  -7.495518717768503e+0f,
                            2.921019019210786e+0f,  -1.015265279202700e+0f, 4.218463358204948e-1f,
                            -2.820767439740514e-1f, 5.641895067754075e-1f};
  constexpr float kLimit = 16, kRootHalf = 0.70710678118654752f, kRootTwoPi = 0.39894228040143268f;
  const Vec c = clamp(x, kLimit), u = (Vec)((VecInt)(c * splat(kRootHalf)) & 0x7FFFFFFF), square = u * u;
  const Vec e = exp(-square), one = splat(1.0f), half = splat(0.5f);
  Vec phi = fma(half * c * splat(kRootHalf), polynomial(square, kErf), half);
  if (const VecInt near = u < one; any(~near)) {  // most vectors need neither polynomial of the tail, or one
    const Vec q = one / max(u, one), y = q * q;
    Vec p = polynomial(y, kNear);
    if (const VecInt middle = u < splat(2.0f); any(~middle)) p = middle ? p : polynomial(y, kFar);
    const Vec tail = half * e * q * p;
    phi = near ? phi : c > Vec{} ? one - tail : tail;
  }
  return {max(splat(-kLimit), x) * phi, fma(c * splat(kRootTwoPi), e, phi)};
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

}  // namespace
}  // namespace gt::cpu
