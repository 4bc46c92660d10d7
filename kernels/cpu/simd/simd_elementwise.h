// Elementwise row kernels and dtype conversions; part of every simd_table.h.
#pragma once
#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/simd/vec.h"

namespace gt::cpu {
namespace {

void add_n(const float* a, const float* b, float* out, int64_t n) {
  sweep(n, [=](int64_t i, auto lanes) { lanes.store(out + i, lanes.load(a + i) + lanes.load(b + i)); });
}

void axpy_n(float alpha, const float* x, float* y, int64_t n) {
  const Vec s = splat(alpha);
  sweep(n, [=](int64_t i, auto lanes) {
    prefetch(x + i), prefetch(y + i);
    lanes.store(y + i, fma(s, lanes.load(x + i), lanes.load(y + i)));
  });
}

void scale_n(const float* x, float factor, float* out, int64_t n) {
  const Vec f = splat(factor);
  sweep(n, [=](int64_t i, auto lanes) { lanes.store(out + i, lanes.load(x + i) * f); });
}

void add_scalar_n(const float* x, float addend, float* out, int64_t n) {
  const Vec a = splat(addend);
  sweep(n, [=](int64_t i, auto lanes) { lanes.store(out + i, lanes.load(x + i) + a); });
}

void rotate_n(const float* cos, const float* sin, float* a, float* b, int64_t n, bool backward) {
  const Vec sign = splat(backward ? -1.0f : 1.0f);
  sweep(n, [=](int64_t i, auto lanes) {
    const Vec c = lanes.load(cos + i), s = lanes.load(sin + i) * sign, x = lanes.load(a + i), y = lanes.load(b + i);
    lanes.store(a + i, x * c - y * s);
    lanes.store(b + i, y * c + x * s);
  });
}

void exp_n(const float* x, float* out, int64_t n) {
  sweep(n, [=](int64_t i, auto lanes) { lanes.store(out + i, exp(lanes.load(x + i))); });
}

void tanh_n(const float* x, float* out, int64_t n) {
  sweep(n, [=](int64_t i, auto lanes) { lanes.store(out + i, tanh(lanes.load(x + i))); });
}

void soft_cap_n(const float* x, float cap, float* out, int64_t n) {
  const Vec c = splat(cap), inverse = splat(1 / cap);
  sweep(n, [=](int64_t i, auto lanes) { lanes.store(out + i, c * tanh(lanes.load(x + i) * inverse)); });
}

void soft_cap_grad_n(const float* capped, float cap, float* d, int64_t n) {
  const Vec inverse = splat(1 / cap);
  sweep(n, [=](int64_t i, auto lanes) {
    const Vec part = lanes.load(capped + i) * inverse;
    lanes.store(d + i, lanes.load(d + i) * (splat(1.0f) - part * part));
  });
}

// Round to nearest even. A NaN keeps its sign and becomes quiet.
inline VecBits bf16_bits(Vec x) {
  const VecBits u = (VecBits)x, rounded = u + 0x7FFFu + (u >> 16 & 1u);
  return x == x ? rounded >> 16 : (u >> 16 | 0x40u);
}
#if defined(__AVX512BF16__)
inline VecU16 to_bf16(Vec x) {
  constexpr int kSubnormal = 0x20;  // for which the instruction gives 0
  if (__builtin_expect(_mm512_fpclass_ps_mask(x, kSubnormal) != 0, 0))
    return __builtin_convertvector(bf16_bits(x), VecU16);
  return (VecU16)_mm512_cvtneps_pbh(x);
}
#else
inline VecU16 to_bf16(Vec x) { return __builtin_convertvector(bf16_bits(x), VecU16); }
#endif
inline Vec from_bf16(VecU16 x) { return (Vec)(__builtin_convertvector(x, VecBits) << 16); }

// Vectors of a row of f32 or bf16, widened.
template <class Lanes>
inline Vec load_wide(const float* p, Lanes lanes) {
  return lanes.load(p);
}
template <class Lanes>
inline Vec load_wide(const uint16_t* p, Lanes lanes) {
  return from_bf16(load_some<VecU16>(p, lanes));
}

template <class T>
void sum_rows_n(const T* x, int64_t stride, int64_t rows, float* out, int64_t cols, bool accumulate) {
  if (!accumulate) sweep(cols, [=](int64_t i, auto lanes) { lanes.store(out + i, Vec{}); });
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const T *a = x + r * stride, *b = a + stride, *c = b + stride, *d = c + stride;
    sweep(cols, [=](int64_t i, auto lanes) {
      const Vec ab = load_wide(a + i, lanes) + load_wide(b + i, lanes);
      lanes.store(out + i, lanes.load(out + i) + (ab + (load_wide(c + i, lanes) + load_wide(d + i, lanes))));
    });
  }
  for (; r < rows; ++r) {
    const T* a = x + r * stride;
    sweep(cols, [=](int64_t i, auto lanes) { lanes.store(out + i, lanes.load(out + i) + load_wide(a + i, lanes)); });
  }
}

#if defined(__AVX512F__)
inline VecU16 to_f16(Vec x) {
  return (VecU16)_mm512_maskz_cvtps_ph(0xFFFF, x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Vec from_f16(VecU16 x) { return _mm512_maskz_cvtph_ps(0xFFFF, (__m256i)x); }
#elif defined(__AVX2__)
inline VecU16 to_f16(Vec x) { return (VecU16)_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Vec from_f16(VecU16 x) { return _mm256_cvtph_ps((__m128i)x); }
#else
// Normal results are rounded as integers; subnormal ones by adding a number whose last bit weighs 2^-24.
inline VecU16 to_f16(Vec x) {
  const VecBits u = (VecBits)x, sign = u >> 16 & 0x8000u, a = u & 0x7FFFFFFFu;
  const VecBits normal = (a - 0x38000000u + 0xFFFu + (a >> 13 & 1u)) >> 13;
  const VecBits small = (VecBits)((Vec)a + splat(0.5f)) - 0x3F000000u;
  VecBits h = a < 0x38800000u ? small : normal;
  h = a >= 0x477FF000u ? VecBits{} + 0x7C00u : h;            // 65520 and above round to inf
  h = a > 0x7F800000u ? (0x7E00u | (u >> 13 & 0x3FFu)) : h;  // NaN
  return __builtin_convertvector(h | sign, VecU16);
}
inline Vec from_f16(VecU16 x) {
  const VecBits u = __builtin_convertvector(x, VecBits), sign = (u & 0x8000u) << 16, a = u & 0x7FFFu;
  const VecBits normal = (a << 13) + 0x38000000u;
  const VecBits small = (VecBits)(__builtin_convertvector((VecInt)a, Vec) * splat(5.9604644775390625e-8f));  // 2^-24
  VecBits f = a < 0x400u ? small : normal;
  f = a >= 0x7C00u ? (a << 13 | 0x7F800000u | (a > 0x7C00u ? VecBits{} + 0x400000u : VecBits{})) : f;
  return (Vec)(f | sign);
}
#endif

// Whole vectors, then one padded vector.
template <class Out, class In, class F>
inline void convert(const In* x, Out* out, int64_t n, F f) {
  typedef In VecIn __attribute__((vector_size(kLanes * sizeof(In))));
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto v = f(load_as<VecIn>(x + i));
    __builtin_memcpy(out + i, &v, sizeof v);
  }
  if (i == n) return;
  In part[kLanes] = {};
  for (int k = 0; k < n - i; ++k) part[k] = x[i + k];
  const auto v = f(load_as<VecIn>(part));
  Out done[kLanes];
  __builtin_memcpy(done, &v, sizeof v);
  for (int k = 0; k < n - i; ++k) out[i + k] = done[k];
}

void f32_to_bf16_n(const float* x, uint16_t* out, int64_t n) {
  convert(x, out, n, [](Vec v) { return to_bf16(v); });
}
// The same past the caches, for results that will not be read soon. Complete when it returns.
void stream_bf16_n(const float* x, uint16_t* out, int64_t n) {
  const int64_t misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(out) % sizeof(VecU16)) / 2;
  const int64_t before = misaligned == 0 ? 0 : kLanes - misaligned;
  if (reinterpret_cast<uintptr_t>(out) % 2 != 0 || n < before + kLanes) return f32_to_bf16_n(x, out, n);
  f32_to_bf16_n(x, out, before);
  int64_t i = before;
  for (; i + kLanes <= n; i += kLanes) stream(out + i, to_bf16(load(x + i)));
  fence_streams();
  f32_to_bf16_n(x + i, out + i, n - i);
}
void bf16_to_f32_n(const uint16_t* x, float* out, int64_t n) {
  convert(x, out, n, [](VecU16 v) { return from_bf16(v); });
}
void f32_to_f16_n(const float* x, uint16_t* out, int64_t n) {
  convert(x, out, n, [](Vec v) { return to_f16(v); });
}
void f16_to_f32_n(const uint16_t* x, float* out, int64_t n) {
  convert(x, out, n, [](VecU16 v) { return from_f16(v); });
}

}  // namespace
}  // namespace gt::cpu
