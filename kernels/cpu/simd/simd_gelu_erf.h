// GELU by erf and its gradient; part of every simd_table.h.
#pragma once
#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/simd/simd_activation.h"
#include "kernels/cpu/simd/simd_gemm.h"
#include "kernels/cpu/simd/vec.h"

namespace gt::cpu {
namespace {

// Horner's rule, the highest power first.
template <int N>
inline Vec polynomial(Vec x, const float (&c)[N]) {
  Vec p = splat(c[0]);
  for (int i = 1; i < N; ++i) p = fma(p, x, splat(c[i]));
  return p;
}

// x Phi(x), slope Phi(x) + x phi(x). erf and erfc as in Cephes' ndtrf.c: an odd polynomial up to 1, beyond it e^-u^2
// times a polynomial in 1/u^2; relative error below 4e-7. Phi is 0 or 1 in f32 beyond the limit, where x is clamped.
struct GeluErf {
  static constexpr float kLimit = 16;
  Vec x, c, u, e, phi;  // c: clamped x; u = |c| / sqrt(2); e = e^-u^2; phi: of the polynomial up to 1
  VecInt near;          // lanes where u < 1

  explicit GeluErf(Vec x_) : x(x_) {
    constexpr float kErf[] = {7.853861353153693e-5f,  -8.010193625184903e-4f, 5.188327685732524e-3f,
                              -2.685381193529856e-2f, 1.128358514861418e-1f,  -3.761262582423300e-1f,
                              1.128379165726710e+0f};
    constexpr float kRootHalf = 0.70710678118654752f;
    const Vec half = splat(0.5f);
    c = clamp(x, kLimit), u = (Vec)((VecInt)(c * splat(kRootHalf)) & 0x7FFFFFFF);
    const Vec square = u * u;
    e = exp(-square);
    phi = fma(half * c * splat(kRootHalf), polynomial(square, kErf), half);
    near = u < splat(1.0f);
  }

  // Replaces phi in the other lanes.
  void add_tail() {
    constexpr float kNear[] = {2.326819970068386e-2f,  -1.387039388740657e-1f, 3.687424674597105e-1f,
                               -5.824733027278666e-1f, 6.210004621745983e-1f,  -4.944515323274145e-1f,
                               3.404879937665872e-1f,  -2.741127028184656e-1f, 5.638259427386472e-1f};
    constexpr float kFar[] = {-1.047766399936249e+1f, 1.297719955372516e+1f,  -7.495518717768503e+0f,
                              2.921019019210786e+0f,  -1.015265279202700e+0f, 4.218463358204948e-1f,
                              -2.820767439740514e-1f, 5.641895067754075e-1f};
    const Vec one = splat(1.0f), q = one / max(u, one), y = q * q;
    Vec p = polynomial(y, kNear);
    if (const VecInt middle = u < splat(2.0f); any(~middle)) p = middle ? p : polynomial(y, kFar);
    const Vec tail = splat(0.5f) * e * q * p;
    phi = near ? phi : c > Vec{} ? one - tail : tail;
  }

  Activated parts() const {
    constexpr float kRootTwoPi = 0.39894228040143268f;
    return {max(splat(-kLimit), x) * phi, fma(c * splat(kRootTwoPi), e, phi)};
  }
};

inline Activated gelu_erf_parts(Vec x) {
  GeluErf g(x);
  if (any(~g.near)) g.add_tail();
  return g.parts();
}

#if defined(__AVX512F__)
// A few elements of most vectors need the tail: 9 % of a trained model's, in 3 of 4 vectors. They are gathered, with
// their offsets, and computed together after the others. Calls first(i, lanes, parts) for the vectors of [0, n), with
// parts 1 for these elements, then finish(offsets, mask, parts) for up to a vector of them.
template <class First, class Finish>
inline void sweep_erf(const float* x, int64_t n, First first, Finish finish) {
  constexpr int64_t kBlock = 1024;
  const __m512i numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    float late[kBlock + kLanes];
    int32_t offsets[kBlock + kLanes];
    int count = 0;
    sweep(least(kBlock, n - begin), [&](int64_t at, auto lanes) {
      const int64_t i = begin + at;
      const GeluErf g(lanes.load(x + i));  // inactive lanes: 0
      const Activated a = g.parts();
      first(i, lanes, Activated{g.near ? a.value : splat(1.0f), g.near ? a.slope : splat(1.0f)});
      const auto far = (__m512i)~g.near;
      const __mmask16 mask = _mm512_test_epi32_mask(far, far);
      store(late + count, _mm512_maskz_compress_ps(mask, g.x));
      const __m512i offset = _mm512_add_epi32(numbers, _mm512_set1_epi32(static_cast<int32_t>(i)));
      _mm512_storeu_si512(offsets + count, _mm512_maskz_compress_epi32(mask, offset));
      count += __builtin_popcount(mask);
    });
    for (int i = 0; i < count; i += kLanes) {
      const Part lanes{count - i < kLanes ? count - i : kLanes};
      finish(_mm512_loadu_si512(offsets + i), lanes.mask(), gelu_erf_parts(lanes.load(late + i)));
    }
  }
}

// p[at] *= factor.
inline void multiply_at(float* p, __m512i at, __mmask16 mask, Vec factor) {
  const Vec v = _mm512_mask_i32gather_ps(Vec{}, mask, at, p, 4);
  _mm512_mask_i32scatter_ps(p, mask, at, v * factor, 4);
}

void gelu_erf_n(const float* gate, const float* up, float* out, int64_t n) {
  const auto first = [=](int64_t i, auto lanes, const Activated& a) {
    prefetch(gate + i), prefetch_result(out + i);
    lanes.store(out + i, up != nullptr ? a.value * lanes.load(up + i) : a.value);
  };
  sweep_erf(gate, n, first,
            [=](__m512i at, __mmask16 mask, const Activated& a) { multiply_at(out, at, mask, a.value); });
}

void gelu_erf_grad_n(const float* gate, const float* up, const float* dout, float* dgate, float* dup, int64_t n) {
  const auto first = [=](int64_t i, auto lanes, const Activated& a) {
    prefetch(gate + i), prefetch(dout + i), prefetch_result(dgate + i);
    const Vec d = lanes.load(dout + i), u = up != nullptr ? lanes.load(up + i) : splat(1.0f);
    lanes.store(dgate + i, d * u * a.slope);
    if (dup != nullptr) lanes.store(dup + i, d * a.value);
  };
  sweep_erf(gate, n, first, [=](__m512i at, __mmask16 mask, const Activated& a) {
    multiply_at(dgate, at, mask, a.slope);
    if (dup != nullptr) multiply_at(dup, at, mask, a.value);
  });
}
#else
constexpr auto gelu_erf_n = activate_n<gelu_erf_parts>;
constexpr auto gelu_erf_grad_n = activate_grad_n<gelu_erf_parts>;
#endif

}  // namespace
}  // namespace gt::cpu
