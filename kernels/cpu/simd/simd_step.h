// Kernels at the end of a step: softmax over the vocabulary, f64 sums; part of every simd_table.h.
#pragma once
#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/simd/vec.h"

namespace gt::cpu {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

float max_of_row(const float* x, int64_t n) {
  const Vec highest = fold(
      n, splat(kMinusInfinity),
      [=](Vec acc, int64_t i, auto lanes) { return max(acc, lanes.keep(lanes.load(x + i), kMinusInfinity)); },
      [](Vec a, Vec b) { return max(a, b); });
  return max_lanes(highest);
}

void softmax_stats_row(const float* x, int64_t n, float* max_out, float* sum_out) {
  *max_out = max_of_row(x, n);
  const Vec shift = splat(*max_out);
  const Vec total = fold(
      n, Vec{}, [=](Vec acc, int64_t i, auto lanes) { return acc + lanes.keep(exp(lanes.load(x + i) - shift)); },
      [](Vec a, Vec b) { return a + b; });
  *sum_out = sum_lanes(total);
}

void softmax_exps_row(const float* x, float* out, int64_t n, float* max_out, float* sum_out) {
  *max_out = max_of_row(x, n);
  const Vec shift = splat(*max_out);
  const Vec total = fold(
      n, Vec{},
      [=](Vec acc, int64_t i, auto lanes) {
        const Vec e = exp(lanes.load(x + i) - shift);
        lanes.store(out + i, e);
        return acc + lanes.keep(e);
      },
      [](Vec a, Vec b) { return a + b; });
  *sum_out = sum_lanes(total);
}

void softmax_scaled_row(const float* x, float* out, int64_t n, float max, float factor) {
  const Vec shift = splat(max), f = splat(factor);
  sweep(n, [=](int64_t i, auto lanes) { lanes.store(out + i, exp(lanes.load(x + i) - shift) * f); });
}

inline VecDouble widen(const float* p) { return __builtin_convertvector(load_as<HalfVec>(p), VecDouble); }

// Four accumulators of kLanes / 2 doubles, combined in fixed order, then the tail one by one.
template <bool kSquares>
inline double sum_double(const float* x, int64_t n) {
  constexpr int kHalf = kLanes / 2;
  VecDouble acc[4] = {};
  int64_t i = 0;
  for (; i + 4 * kHalf <= n; i += 4 * kHalf) {
    for (int k = 0; k < 4 * kHalf; k += kLineFloats) prefetch(x + i + k);
    for (int k = 0; k < 4; ++k) {
      const VecDouble v = widen(x + i + k * kHalf);
      acc[k] += kSquares ? v * v : v;
    }
  }
  const VecDouble joined = (acc[0] + acc[1]) + (acc[2] + acc[3]);
  double total = 0;
  for (int k = 0; k < kHalf; ++k) total += joined[k];
  for (; i < n; ++i) total += kSquares ? static_cast<double>(x[i]) * x[i] : x[i];
  return total;
}
double sum_n(const float* x, int64_t n) { return sum_double<false>(x, n); }
double sum_squares_n(const float* x, int64_t n) { return sum_double<true>(x, n); }

}  // namespace
}  // namespace gt::cpu
