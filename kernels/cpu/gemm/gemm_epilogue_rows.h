// Body of gemm_epilogue_{scalar,avx2,avx512}.cpp, written once on vectors of kLanes floats (GCC/Clang vector
// extension). Included only by those files, each with its own kLanes, in an anonymous namespace: nothing here may be
// shared.
#include <cstdint>
#include <cstring>

#include "kernels/cpu/gemm/gemm_epilogue.h"

namespace gt::cpu {
namespace {

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef int32_t VecInt __attribute__((vector_size(kLanes * 4)));

inline Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }
inline Vec clamp(Vec x, float low, float high) {
  x = x < low ? Vec{} + low : x;  // a NaN compares false and passes through
  return x > high ? Vec{} + high : x;
}

// e^x for |x| <= 87: x = n ln2 + r with |r| <= ln2 / 2, Taylor polynomial of degree 7 in r (error below 5e-9), times
// 2^n.
inline Vec exp_bounded(Vec x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
  const Vec shifted = x * 1.44269504088896f + kMagic;
  const Vec n = shifted - kMagic;
  const Vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Vec p = r * (1.0f / 5040) + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  VecInt bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits << 23) + 0x3F800000;  // the magic constant's own bits are shifted out
  Vec scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return p * scale;
}

constexpr float kRoot = 0.7978845608028654f, kCubic = 0.044715f;

// e^(-2u), u = sqrt(2/pi) (x + 0.044715 x^3)
inline Vec exp_minus_2u(Vec x) { return exp_bounded(clamp((-2 * kRoot) * (x + kCubic * (x * x * x)), -87.0f, 87.0f)); }

inline Vec gelu(Vec x) { return x / (1.0f + exp_minus_2u(x)); }

// With e = e^(-2u) and s = 1 / (1 + e): (x s)' = s + x s (1 - s) (2u)', where 1 - s = e s without cancellation.
inline Vec gelu_grad(Vec x) {
  const Vec e = exp_minus_2u(x), s = 1.0f / (1.0f + e);
  // Beyond |x| = 16 the second term is 0; the clamp avoids inf * 0.
  const Vec c = clamp(x, -16.0f, 16.0f);
  return s + c * (e * s) * s * ((2 * kRoot) * (1.0f + (3 * kCubic) * (c * c)));
}

// Whole vectors, then one padded vector: an element's bits do not depend on its position in the row.
void gelu_row(const float* z, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, gelu(load(z + i)));
  if (i == n) return;
  float part[kLanes] = {};
  std::memcpy(part, z + i, static_cast<size_t>(n - i) * 4);
  store(part, gelu(load(part)));
  std::memcpy(out + i, part, static_cast<size_t>(n - i) * 4);
}

void gelu_grad_row(const float* z, float* inout, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(inout + i, load(inout + i) * gelu_grad(load(z + i)));
  if (i == n) return;
  float at[kLanes] = {}, part[kLanes] = {};
  std::memcpy(at, z + i, static_cast<size_t>(n - i) * 4);
  std::memcpy(part, inout + i, static_cast<size_t>(n - i) * 4);
  store(part, load(part) * gelu_grad(load(at)));
  std::memcpy(inout + i, part, static_cast<size_t>(n - i) * 4);
}

}  // namespace
}  // namespace gt::cpu
