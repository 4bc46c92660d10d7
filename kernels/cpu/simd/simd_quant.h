// Fake quantization to int8; part of every simd_table.h.
#pragma once
#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/simd/vec.h"

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

// Runs once per weight. The sum with 1.5 * 2^23 holds the rounded value in its last bits.
void quantize_int8_n(const float* x, float scale, int8_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float v = x[i] / scale, low = v < -127.0f ? -127.0f : v, q = low > 127.0f ? 127.0f : low;
    out[i] = static_cast<int8_t>(__builtin_bit_cast(int32_t, q + 12582912.0f) - 0x4B400000);
  }
}

void dequantize_int8_n(const int8_t* x, float scale, float* out, int64_t n) {
  typedef int8_t Codes __attribute__((vector_size(kLanes)));
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    store(out + i, __builtin_convertvector(load_as<Codes>(x + i), Vec) * splat(scale));
  for (; i < n; ++i) out[i] = static_cast<float>(x[i]) * scale;
}

}  // namespace
}  // namespace gt::cpu
