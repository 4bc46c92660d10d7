// Operands of a PairGemm from rows of bf16; part of every simd_table.h.
#pragma once
#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/simd/simd_transpose.h"
#include "kernels/cpu/simd/vec.h"

namespace gt::cpu {
namespace {

inline void store_bits(void* p, VecBits v) { __builtin_memcpy(p, &v, sizeof v); }

// Elements of a row as the low halves of lanes, or two by two.
template <class Lanes>
inline VecBits load_bf16(const uint16_t* p, Lanes lanes) {
  return __builtin_convertvector(load_some<VecU16>(p, lanes), VecBits);
}
template <class Lanes>
inline Vec load_pairs(const uint16_t* p, Lanes lanes) {
  return load_some<Vec>(p, lanes);
}

// Rows of bf16 of which [first, end) exist; the others are zero.
struct Rows {
  const uint16_t* at;
  int64_t stride, first, end;
  template <class Lanes>
  VecBits load(int64_t row, int64_t column, Lanes lanes) const {
    return row >= first && row < end ? load_bf16(at + row * stride + column, lanes) : VecBits{};
  }
  // Rows 2i and 2i + 1 as pairs.
  template <class Lanes>
  VecBits pair(int64_t i, int64_t column, Lanes lanes) const {
    return load(2 * i, column, lanes) | load(2 * i + 1, column, lanes) << 16;
  }
  int64_t pairs() const { return (end + 1) / 2; }
};

// Right operand of a product over the rows' elements: pair d of column i is elements 2d and 2d + 1 of row i. Columns
// from `count` on are 0 up to a whole vector.
inline void turn_rows(const uint16_t* rows, int64_t stride, int64_t count, int64_t dim, int64_t panel, uint32_t* to) {
  transpose_squares(
      count, dim / 2,
      [=](int64_t i, int64_t d, auto lanes) {
        const uint16_t* row = rows + i * stride + 2 * d;
        __builtin_prefetch(row + kLanes * stride);
        return load_pairs(row, lanes);
      },
      [=](int64_t d, int64_t i, Vec v) { store_bits(to + pair_at(d, i, panel), (VecBits)v); });
}
typedef uint16_t TwoVecs __attribute__((vector_size(kLanes * 4)));  // elements of two VecU16

// Elements kFirst, kFirst + 1, ... of two rows, alternately.
template <int kFirst, int... kLane>
inline VecBits alternate(TwoVecs low, TwoVecs high, std::integer_sequence<int, kLane...>) {
  return (VecBits)__builtin_shufflevector(low, high, (kFirst + kLane / 2 + kLane % 2 * 2 * kLanes)...);
}
// Right operand of a product over rows: pair i of column d is element d of rows 2i and 2i + 1. Columns from dim on: 0.
inline void pair_rows(const Rows& rows, int64_t dim, int64_t panel, uint32_t* to) {
  constexpr std::make_integer_sequence<int, 2 * kLanes> kAll;
  constexpr int64_t kRowsAhead = 32;  // which the processor does not foresee: rows are parts of longer ones
  for (int64_t i = 0; i < rows.pairs(); ++i) {
    const uint16_t *row = rows.at + 2 * i * rows.stride, *ahead = row + kRowsAhead * rows.stride;
    int64_t d = 0;
    if (2 * i >= rows.first && 2 * i + 1 < rows.end)
      for (; d + 2 * kLanes <= dim; d += 2 * kLanes) {
        __builtin_prefetch(ahead + d, 0, 2);
        __builtin_prefetch(ahead + rows.stride + d, 0, 2);
        const auto low = load_as<TwoVecs>(row + d), high = load_as<TwoVecs>(row + rows.stride + d);
        store_bits(to + pair_at(i, d, panel), alternate<0>(low, high, kAll));
        store_bits(to + pair_at(i, d + kLanes, panel), alternate<kLanes>(low, high, kAll));
      }
    sweep(dim - d, [&](int64_t rest, auto lanes) {
      store_bits(to + pair_at(i, d + rest, panel), rows.pair(i, d + rest, lanes));
    });
  }
}
// to[d * columns + i] = the same pair: left operand of a product over rows. Columns up to a whole vector are written.
inline void turn_pairs(const Rows& rows, int64_t dim, int64_t columns, uint32_t* to) {
  transpose_squares(
      rows.pairs(), dim, [&](int64_t i, int64_t d, auto lanes) { return (Vec)rows.pair(i, d, lanes); },
      [=](int64_t d, int64_t i, Vec v) { store_bits(to + d * columns + i, (VecBits)v); });
}

// The same for the table.
void turn_rows_n(const uint16_t* rows, int64_t stride, int64_t count, int64_t dim, int64_t panel, uint32_t* to) {
  turn_rows(rows, stride, count, dim, panel, to);
}
void pair_rows_n(const uint16_t* rows, int64_t stride, int64_t count, int64_t dim, int64_t panel, uint32_t* to) {
  pair_rows({rows, stride, 0, count}, dim, panel, to);
}
void turn_pairs_n(const uint16_t* rows, int64_t stride, int64_t count, int64_t dim, int64_t columns, uint32_t* to) {
  turn_pairs({rows, stride, 0, count}, dim, columns, to);
}

}  // namespace
}  // namespace gt::cpu
