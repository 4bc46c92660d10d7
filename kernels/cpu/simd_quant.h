// Fake quantization to int8; body of simd_{scalar,avx2,avx512}.cpp.
#pragma once
#include "kernels/cpu/simd.h"
#include "kernels/cpu/vec.h"

namespace gt::cpu {
namespace {

inline Vec absolute(Vec x) { return (Vec)((VecBits)x & 0x7FFFFFFFu); }

// Adding 1.5 * 2^23 leaves no fraction bits: the sum is rounded to nearest even. NaN propagates: min and max return
// their second argument.
void fake_quant_n(const float* x, float limit, float* out, int64_t n) {
  const float least = 1.17549435e-38f, quotient = limit / 127;
  const Vec scale = splat(quotient > least ? quotient : least), magic = splat(12582912.0f);
  sweep(n, [=](int64_t i, auto lanes) {
    const Vec v = lanes.keep(lanes.load(x + i)) / scale;
    const Vec q = (min(splat(127), max(splat(-127), v)) + magic) - magic;
    lanes.store(out + i, q * scale);
  });
}

void fake_quant_grad_n(const float* x, float limit, const float* dout, float* out, int64_t n) {
  const Vec most = splat(limit);
  sweep(n, [=](int64_t i, auto lanes) {
    lanes.store(out + i, absolute(lanes.load(x + i)) <= most ? lanes.load(dout + i) : Vec{});
  });
}

float max_abs_n(const float* x, int64_t n) {
  const Vec all = fold(
      n, Vec{}, [=](Vec acc, int64_t i, auto lanes) { return max(acc, absolute(lanes.load(x + i))); },
      [](Vec a, Vec b) { return max(a, b); });
  float most = 0;
  for (int i = 0; i < kLanes; ++i) most = all[i] > most ? all[i] : most;
  return most;
}

}  // namespace
}  // namespace gt::cpu
