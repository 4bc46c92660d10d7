// Operands of a SplitGemm; part of every simd_table.h.
#pragma once
#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/simd/simd_pairs.h"
#include "kernels/cpu/simd/simd_transpose.h"
#include "kernels/cpu/simd/vec.h"

namespace gt::cpu {
namespace {

constexpr int64_t kSide = kSplitStep / 2;  // lines of a part of a tile, and pairs of a line

// `rows` rows of `columns` floats, at most kSide of each, `stride` apart.
struct Square {
  const float* at;
  int64_t stride, rows, columns;
};

// Returns x, transposed if `turned`, with zeros for what does not exist; `local`: kSide x kSide floats for it.
inline Square whole_square(const Square& x, bool turned, float* local) {
  const bool whole = x.rows == kSide && x.columns == kSide;
  if (whole && !turned) return x;
  if (whole) {
    for (int64_t i = 0; i < kSide; i += kLanes)
      for (int64_t j = 0; j < kSide; j += kLanes) {
        Vec square[kLanes];
#pragma GCC unroll 16
        for (int r = 0; r < kLanes; ++r) square[r] = load(x.at + (i + r) * x.stride + j);
        transpose_square(square);
        for (int c = 0; c < kLanes; ++c) store(local + (j + c) * kSide + i, square[c]);
      }
  } else {
    for (int64_t i = 0; i < kSide * kSide; ++i) local[i] = 0;
    for (int64_t r = 0; r < x.rows; ++r)
      for (int64_t c = 0; c < x.columns; ++c) local[turned ? c * kSide + r : r * kSide + c] = x.at[r * x.stride + c];
  }
  return {local, kSide, kSide, kSide};
}

// The bits of x rounded to bf16, halves away from zero.
inline VecBits part_bits(Vec x) { return ((VecBits)x + 0x8000) & 0xFFFF0000; }

// The parts of pairs (low, high). The last part of NaN, of infinity and of what rounds to it is NaN.
inline void store_parts(Vec low, Vec high, uint32_t* to) {
  for (int part = 0; part < 2; ++part) {
    const VecBits l = part_bits(low), h = part_bits(high);
    store_bits(to + part * kSide * kSide, l >> 16 | h);
    low -= (Vec)l, high -= (Vec)h;
  }
  store_bits(to + 2 * kSide * kSide, (VecBits)low >> 16 | ((VecBits)high & 0xFFFF0000));
}

inline void split_tile(const Square& low, const Square& high, bool turned, uint32_t* to) {
  alignas(64) float local[2][kSide * kSide];
  const Square l = whole_square(low, turned, local[0]), h = whole_square(high, turned, local[1]);
  for (int64_t i = 0; i < kSide; ++i)
    for (int64_t j = 0; j < kSide; j += kLanes)
      store_parts(load(l.at + i * l.stride + j), load(h.at + i * h.stride + j), to + i * kSide + j);
}

void split_rows_n(const float* x, int64_t stride, int64_t count, int64_t depth, bool left, int64_t tile, uint32_t* to) {
  for (int64_t i = 0; i < count; i += kSide)
    for (int64_t p = 0; p < depth; p += kSplitStep) {
      const int64_t rows = least(kSide, count - i), rest = depth - p;
      const float* at = x + i * stride + p;
      split_tile({at, stride, rows, least(kSide, rest)},
                 {at + kSide, stride, rows, rest > kSide ? least(kSide, rest - kSide) : 0}, !left,
                 to + i / kSide * tile + p / kSplitStep * kSplitTile);
    }
}

void split_columns_n(const float* x, int64_t stride, int64_t count, int64_t depth, bool left, int64_t tile,
                     uint32_t* to) {
  for (int64_t p = 0; p < depth; p += kSplitStep)
    for (int64_t i = 0; i < count; i += kSide) {
      const int64_t columns = least(kSide, count - i), rest = depth - p;
      const float* at = x + p * stride + i;
      split_tile({at, stride, least(kSide, rest), columns},
                 {at + kSide * stride, stride, rest > kSide ? least(kSide, rest - kSide) : 0, columns}, left,
                 to + i / kSide * tile + p / kSplitStep * kSplitTile);
    }
}

}  // namespace
}  // namespace gt::cpu
