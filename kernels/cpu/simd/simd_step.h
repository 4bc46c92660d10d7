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

// sum + v^2. The square of an f32 is exact, so the result is rounded once on every instruction set.
inline VecDouble add_square(VecDouble v, VecDouble sum) {
#if defined(__AVX512F__)
  return _mm512_fmadd_pd(v, v, sum);
#elif defined(__AVX2__)
  return _mm256_fmadd_pd(v, v, sum);
#else
  return sum + v * v;
#endif
}

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
      acc[k] = kSquares ? add_square(v, acc[k]) : acc[k] + v;
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

// Sum of squares of a block, `copy` called with the place of each pair of vectors. Four accumulators: halves of vectors
// at even and at odd places of a row.
template <class Copy>
inline double square_block(const float* x, int64_t stride, int64_t rows, int64_t cols, Copy copy) {
  VecDouble a{}, b{}, c{}, d{};
  const auto add = [](const float* from, VecDouble& low, VecDouble& high) {
    const VecDouble v = widen(from), w = widen(from + kLanes / 2);
    low = add_square(v, low), high = add_square(w, high);
  };
  for (int64_t r = 0; r < rows; ++r, x += stride) {
    int64_t i = 0;
    for (; i + 2 * kLanes <= cols; i += 2 * kLanes) {
      add(x + i, a, b), add(x + i + kLanes, c, d);
      copy(r, i, x + i, 2);
    }
    if (i == cols) continue;
    float rest[2 * kLanes] = {};
    for (int64_t k = i; k < cols; ++k) rest[k - i] = x[k];
    add(rest, a, b), add(rest + kLanes, c, d);
    copy(r, i, rest, (cols - i) / kLanes);
  }
  const VecDouble joined = (a + b) + (c + d);
  double total = 0;
  for (int k = 0; k < kLanes / 2; ++k) total += joined[k];
  return total;
}

double square_block_n(const float* x, int64_t stride, int64_t rows, int64_t cols) {
  return square_block(x, stride, rows, cols, [](int64_t, int64_t, const float*, int64_t) {});
}

double stream_block_n(const float* x, int64_t stride, int64_t rows, int64_t cols, float* out, int64_t out_stride) {
  return square_block(x, stride, rows, cols, [=](int64_t r, int64_t i, const float* from, int64_t vectors) {
    for (int64_t k = 0; k < vectors * kLanes; k += kLanes) stream(out + r * out_stride + i + k, load(from + k));
  });
}

}  // namespace
}  // namespace gt::cpu
