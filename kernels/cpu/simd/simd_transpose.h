// Transposition in registers, one kLanes x kLanes square at a time; part of every simd_table.h.
#pragma once
#include <utility>

#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/simd/simd_gemm.h"
#include "kernels/cpu/simd/vec.h"

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

// Calls put(d, i, elements d of rows i, i + 1, ...) for d < depth and every kLanes-th i < rows, with zeros for rows
// that do not exist. row(i, d, lanes): elements d, d + 1, ... of row i.
template <class Row, class Put>
inline void transpose_squares(int64_t rows, int64_t depth, Row row, Put put) {
  for (int64_t i = 0; i < rows; i += kLanes) {
    const int64_t live = least(kLanes, rows - i);
    sweep(depth, [=](int64_t d, auto lanes) {
      Vec square[kLanes];
      if (live == kLanes) {
#pragma GCC unroll 16
        for (int r = 0; r < kLanes; ++r) square[r] = row(i + r, d, lanes);
      } else {
        for (int64_t r = 0; r < kLanes; ++r) square[r] = r < live ? row(i + r, d, lanes) : Vec{};
      }
      transpose_square(square);
      const int64_t count = least(kLanes, depth - d);
      for (int64_t c = 0; c < count; ++c) put(d + c, i, square[c]);
    });
  }
}

// to[d * kRowsPanel + i] = factor * from[i * stride + d] for i < rows, d < depth; zero-pads columns to a whole vector.
inline void transpose_rows(const float* from, int64_t stride, int64_t rows, int64_t depth, float factor, float* to) {
  const Vec f = splat(factor);
  transpose_squares(
      rows, depth, [=](int64_t i, int64_t d, auto lanes) { return f * lanes.load(from + i * stride + d); },
      [=](int64_t d, int64_t i, Vec v) { store(to + d * kRowsPanel + i, v); });
}

// The same without a factor, for the table.
void transpose_rows_n(const float* from, int64_t stride, int64_t rows, int64_t depth, float* to) {
  transpose_rows(from, stride, rows, depth, 1.0f, to);
}

}  // namespace
}  // namespace gt::cpu
