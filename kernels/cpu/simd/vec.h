// A vector of f32 and its operations, written once and compiled per instruction set: 16 lanes with AVX-512, 8 with AVX2
// + FMA, 4 (SSE2 on x86-64) elsewhere. Everything has internal linkage, and only types of std:: are used, so the linker
// can never mix code of different instruction sets. Independent of tensors and ops.
#pragma once
#include <cstdint>
#include <utility>
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace gt::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef int32_t VecInt __attribute__((vector_size(kLanes * 4)));
typedef uint32_t VecBits __attribute__((vector_size(kLanes * 4)));
typedef uint16_t VecU16 __attribute__((vector_size(kLanes * 2)));
typedef float HalfVec __attribute__((vector_size(kLanes * 2)));  // kLanes / 2 floats, which widen to a VecDouble
typedef double VecDouble __attribute__((vector_size(kLanes * 4)));

inline Vec splat(float x) { return x - Vec{}; }  // x - 0 keeps the sign of zero
template <class T>
inline T load_as(const void* p) {
  T v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
inline Vec load(const float* p) { return load_as<Vec>(p); }
inline void store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof v); }

// fma rounds once where the instruction set supports it. min and max return b when either operand is NaN.
#if defined(__AVX512F__)
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec max(Vec a, Vec b) { return _mm512_maskz_max_ps(0xFFFF, a, b); }
inline Vec min(Vec a, Vec b) { return _mm512_maskz_min_ps(0xFFFF, a, b); }
// maskz: GCC 12 warns about the plain intrinsic's own code.
inline Vec sqrt(Vec a) { return _mm512_maskz_sqrt_ps(0xFFFF, a); }
// 1 / a for normal results, relative error below 1.3e-7: an estimate to 2^-14 and one step of Newton's take a third of
// a division's time.
inline Vec reciprocal(Vec a) {
  const Vec r = _mm512_maskz_rcp14_ps(0xFFFF, a);
  return fma(r, _mm512_fnmadd_ps(a, r, Vec{} + 1.0f), r);
}
#elif defined(__AVX2__)
inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
inline Vec sqrt(Vec a) { return _mm256_sqrt_ps(a); }
inline Vec reciprocal(Vec a) { return 1.0f / a; }
#else
inline Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
inline Vec max(Vec a, Vec b) { return a > b ? a : b; }
inline Vec min(Vec a, Vec b) { return a < b ? a : b; }
inline Vec sqrt(Vec a) {
  for (int i = 0; i < kLanes; ++i) a[i] = __builtin_sqrtf(a[i]);
  return a;
}
inline Vec reciprocal(Vec a) { return 1.0f / a; }
#endif

// Whether a comparison (lanes 0 or -1) is true in any lane.
inline bool any(VecInt m) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)m, (__m512i)m) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps((__m256)m) != 0;
#else
  int32_t all = 0;
  for (int i = 0; i < kLanes; ++i) all |= m[i];
  return all != 0;
#endif
}

// Prefetch what a loop over rows reads and writes kAhead floats later. The processor does so by itself within a page of
// 4 KiB only, which is too late for data in the L3 cache.
constexpr int64_t kLineFloats = 16, kAhead = 512;  // floats of a cache line
inline void prefetch(const float* p) { __builtin_prefetch(p + kAhead); }
inline void prefetch_result(const float* p) { __builtin_prefetch(p + kAhead, 1); }

// Stores past the caches to an aligned address, without reading the line first; visible to others after
// fence_streams().
#if defined(__AVX512F__)
inline void stream(void* p, VecU16 v) { _mm256_stream_si256(static_cast<__m256i*>(p), (__m256i)v); }
inline void stream(float* p, Vec v) { _mm512_stream_ps(p, (__m512)v); }
inline void fence_streams() { _mm_sfence(); }
#elif defined(__AVX2__)
inline void stream(void* p, VecU16 v) { _mm_stream_si128(static_cast<__m128i*>(p), (__m128i)v); }
inline void stream(float* p, Vec v) { _mm256_stream_ps(p, (__m256)v); }
inline void fence_streams() { _mm_sfence(); }
#else
inline void stream(void* p, VecU16 v) { __builtin_memcpy(p, &v, sizeof v); }
inline void stream(float* p, Vec v) { cpu::store(p, v); }
inline void fence_streams() {}
#endif

// Active lanes of a vector: all, or the first `count`. Masked loads return 0 elsewhere.
struct Whole {
  static Vec load(const float* p) { return cpu::load(p); }
  static void store(float* p, Vec v) { cpu::store(p, v); }
  static Vec keep(Vec v) { return v; }         // 0 in inactive lanes
  static Vec keep(Vec v, float) { return v; }  // `other` there
};
struct Part {
  int count;
#if defined(__AVX512F__)
  __mmask16 mask() const { return static_cast<__mmask16>((1u << count) - 1); }
  Vec load(const float* p) const { return _mm512_maskz_loadu_ps(mask(), p); }
  void store(float* p, Vec v) const { _mm512_mask_storeu_ps(p, mask(), v); }
  Vec keep(Vec v) const { return _mm512_maskz_mov_ps(mask(), v); }
  Vec keep(Vec v, float other) const { return _mm512_mask_mov_ps(_mm512_set1_ps(other), mask(), v); }
#else
  VecInt mask() const {
    VecInt m;
    for (int i = 0; i < kLanes; ++i) m[i] = i < count ? -1 : 0;
    return m;
  }
#if defined(__AVX2__)
  Vec load(const float* p) const { return _mm256_maskload_ps(p, (__m256i)mask()); }
  void store(float* p, Vec v) const { _mm256_maskstore_ps(p, (__m256i)mask(), v); }
#else
  Vec load(const float* p) const {
    Vec v{};
    for (int i = 0; i < count; ++i) v[i] = p[i];
    return v;
  }
  void store(float* p, Vec v) const {
    for (int i = 0; i < count; ++i) p[i] = v[i];
  }
#endif
  Vec keep(Vec v) const { return mask() ? v : Vec{}; }
  Vec keep(Vec v, float other) const { return mask() ? v : splat(other); }
#endif
};

// A vector V of any element type from memory: all lanes, or the first ones and zeros.
template <class V>
inline V load_some(const void* p, Whole) {
  return load_as<V>(p);
}
template <class V>
inline V load_some(const void* p, Part part) {
  V v{};
  __builtin_memcpy(&v, p, static_cast<uint64_t>(part.count) * sizeof v / kLanes);
  return v;
}

template <class V>
inline void store_some(void* p, V v, Whole) {
  __builtin_memcpy(p, &v, sizeof v);
}
template <class V>
inline void store_some(void* p, V v, Part part) {
  __builtin_memcpy(p, &v, static_cast<uint64_t>(part.count) * sizeof v / kLanes);
}

// Calls f(i, lanes) for every vector of [0, n); the last one may be a Part.
template <class F>
inline void sweep(int64_t n, F f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(i, Whole{});
  if (i < n) f(i, Part{static_cast<int>(n - i)});
}

// Folds f(acc, i, lanes) over [0, n) in four accumulators (hides latency), joined in fixed order.
template <class F, class Join>
inline Vec fold(int64_t n, Vec start, F f, Join join) {
  Vec a = start, b = start, c = start, d = start;
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    a = f(a, i, Whole{});
    b = f(b, i + kLanes, Whole{});
    c = f(c, i + 2 * kLanes, Whole{});
    d = f(d, i + 3 * kLanes, Whole{});
  }
  for (; i + kLanes <= n; i += kLanes) a = f(a, i, Whole{});
  if (i < n) b = f(b, i, Part{static_cast<int>(n - i)});
  return join(join(a, b), join(c, d));
}

// Lanes kShift to the right: lane i becomes lane (i + kShift) % kLanes.
template <int kShift, int... kLane>
inline Vec shift_lanes(Vec v, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(v, v, ((kLane + kShift) % kLanes)...);
}

// Tree reduction over the lanes: halves are joined until lane 0 holds the result.
template <int kShift = kLanes / 2, class Join>
inline float join_lanes(Vec v, Join join) {
  if constexpr (kShift == 0) {
    return v[0];
  } else {
    return join_lanes<kShift / 2>(join(v, shift_lanes<kShift>(v, std::make_integer_sequence<int, kLanes>{})), join);
  }
}
inline float sum_lanes(Vec v) {
  return join_lanes(v, [](Vec a, Vec b) { return a + b; });
}
inline float max_lanes(Vec v) {
  return join_lanes(v, [](Vec a, Vec b) { return a > b ? a : b; });
}

constexpr float kLog2E = 1.44269504088896f;

// e^x, relative error below 2e-7: x = n ln2 + r, polynomial in r (Cephes expf), times 2^n. 0 below -87.33 and for -inf;
// saturates at e^88.3. NaN propagates.
inline Vec exp(Vec x) {
  const Vec low = splat(-87.33f), c = max(low, min(splat(88.3f), x));
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
  const Vec shifted = fma(c, splat(kLog2E), magic), n = shifted - magic;
  const Vec r = fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), c));
  Vec p = fma(splat(1.9875691500e-4f), r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r) + splat(1.0f);
  const Vec scale = (Vec)(((VecInt)shifted << 23) + 0x3F800000);  // the magic number's own bits are shifted out
  return x < low ? Vec{} : p * scale;
}

// tanh x, relative error below 3e-7: an odd polynomial up to 0.625 (Cephes tanhf), beyond it 1 - 2 / (e^2|x| + 1).
// Propagates NaN.
inline Vec tanh(Vec x) {
  const Vec size = (Vec)((VecInt)x & 0x7FFFFFFF), z = x * x;
  Vec p = fma(splat(-5.70498872745e-3f), z, splat(2.06390887954e-2f));
  p = fma(p, z, splat(-5.37397155531e-2f));
  p = fma(p, z, splat(1.33314422036e-1f));
  p = fma(p, z, splat(-3.33332819422e-1f));
  const Vec far = splat(1.0f) - splat(2.0f) / (exp(size + size) + splat(1.0f));
  const Vec with_sign = (Vec)((VecInt)far | ((VecInt)x & INT32_MIN));
  return size > splat(0.625f) ? with_sign : fma(p * z, x, x);
}

}  // namespace
}  // namespace gt::cpu
