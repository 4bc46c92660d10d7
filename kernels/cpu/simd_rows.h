// Row-independent GEMM (Gemm::row_independent); body of simd_{scalar,avx2,avx512}.cpp. A weight is read once, unpacked:
// its rows are transposed in registers, one kLanes x kLanes square at a time.
#pragma once
#include <utility>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_gemm.h"
#include "kernels/cpu/vec.h"

namespace gt::cpu {
namespace {

// Swaps the off-diagonal quadrants of every square of 2 kStep: one step of a recursive transposition.
template <int kStep, int... kLane>
inline void swap_quarters(Vec* row, std::integer_sequence<int, kLane...>) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if ((i & kStep) != 0) continue;
    const Vec a = row[i], b = row[i + kStep];
    row[i] = __builtin_shufflevector(a, b, ((kLane & kStep) != 0 ? kLanes + kLane - kStep : kLane)...);
    row[i + kStep] = __builtin_shufflevector(a, b, ((kLane & kStep) != 0 ? kLanes + kLane : kLane + kStep)...);
  }
}

inline void transpose_square(Vec* row) {
  constexpr std::make_integer_sequence<int, kLanes> kAll;
  if constexpr (kLanes > 8) swap_quarters<kLanes / 2>(row, kAll);
  if constexpr (kLanes > 4) swap_quarters<4>(row, kAll);
  swap_quarters<2>(row, kAll);
  swap_quarters<1>(row, kAll);
}

// to[d * kRowsPanel + i] = from[i * stride + d] for i < rows, d < depth; zero-pads columns to a whole vector.
inline void transpose_rows(const float* from, int64_t stride, int64_t rows, int64_t depth, float* to) {
  for (int64_t i = 0; i < rows; i += kLanes) {
    const int64_t live = least(kLanes, rows - i);
    sweep(depth, [=](int64_t d, auto lanes) {
      Vec square[kLanes];
      const float* at = from + i * stride + d;
      if (live == kLanes) {
#pragma GCC unroll 16
        for (int r = 0; r < kLanes; ++r) square[r] = lanes.load(at + r * stride);
      } else {
        for (int64_t r = 0; r < kLanes; ++r) square[r] = r < live ? lanes.load(at + r * stride) : Vec{};
      }
      transpose_square(square);
      const int64_t count = least(kLanes, depth - d);
      for (int64_t c = 0; c < count; ++c) store(to + (d + c) * kRowsPanel + i, square[c]);
    });
  }
}

// Single-row case, bound by memory bandwidth: squares go from memory to the accumulators through registers only, and
// kLanes weight rows are streamed from end to end.
void gemv_rows_n(int64_t n, int64_t k, const float* a, const float* w, int64_t ldw, float* c, bool more) {
  constexpr int64_t kAhead = 128;  // floats: 8 cache lines
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t live = least(kLanes, n - i);
    Vec sum = more ? load(c + i) : Vec{};
    sweep(k, [&](int64_t d, auto lanes) {
      Vec square[kLanes];
      const float* at = w + i * ldw + d;
      if (live == kLanes) {
#pragma GCC unroll 16
        for (int r = 0; r < kLanes; ++r) {
          __builtin_prefetch(at + r * ldw + kAhead);
          square[r] = lanes.load(at + r * ldw);
        }
      } else {
        for (int64_t r = 0; r < kLanes; ++r) square[r] = r < live ? lanes.load(at + r * ldw) : Vec{};
      }
      transpose_square(square);
      if (k - d >= kLanes) {
#pragma GCC unroll 16
        for (int j = 0; j < kLanes; ++j) sum = fma(splat(a[d + j]), square[j], sum);
      } else {
        for (int64_t j = 0; j < k - d; ++j) sum = fma(splat(a[d + j]), square[j], sum);
      }
    });
    store(c + i, sum);
  }
}

void gemm_rows_n(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* w, int64_t ldw, float* c,
                 bool more, float* scratch) {
  transpose_rows(w, ldw, n, k, scratch);
  const int64_t columns = (n + kLanes - 1) / kLanes * kLanes;
  gemm_block(m, columns, k, a, lda, 1, scratch, kRowsPanel, c, kRowsPanel, more);
}

}  // namespace
}  // namespace gt::cpu
