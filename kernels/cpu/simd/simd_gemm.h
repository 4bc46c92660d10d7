// In-register GEMMs on cache-resident blocks, used by attention and, tile by tile, by gemm.cpp; part of every
// simd_table.h.
#pragma once
#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/simd/vec.h"

namespace gt::cpu {
namespace {

constexpr int64_t kBlock = kAttentionBlock;
static_assert(kBlock % kLanes == 0);

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Prefetches during a register tile, a few lines every kEvery steps: fewer than there are fill buffers, so the tile's
// own loads are not held up.
template <int kLists>
struct Prefetch {
  static constexpr int kEvery = 16;
  Upcoming* next;  // kLists of them
  // `row`: kVecs vectors of the result, which are written later; nullptr: none.
  template <int kVecs>
  void operator()(const float* row) const {
    constexpr int kLines = (kVecs * kLanes + kLineFloats - 1) / kLineFloats;
#pragma GCC unroll 4
    for (int i = 0; row != nullptr && i < kLines; ++i) __builtin_prefetch(row + i * kLineFloats, 1);
    for (int i = 0; i < kLists; ++i) prefetch_some(next[i]);
  }
};
struct NoPrefetch {
  static constexpr int kEvery = 0;
};

// What a GEMM multiplies: elements in f32, or (PairGemm) pairs of bf16 in their place, with an f32 sum.
struct F32Product {
  using Left = float;
  static Vec spread(const float* a) { return splat(*a); }
  static Vec add(Vec a, Vec b, Vec sum) { return fma(a, b, sum); }
};
struct PairProduct {
  using Left = uint16_t;
  static Vec spread(const uint16_t* a) { return (Vec)(load_as<uint32_t>(a) + VecBits{}); }
  static Vec add(Vec a, Vec b, Vec sum) {
#if defined(__AVX512BF16__)
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
#else
    constexpr uint32_t kHigh = 0xFFFF0000u;
    const VecBits x = (VecBits)a, y = (VecBits)b;
    return fma((Vec)(x << 16), (Vec)(y << 16), fma((Vec)(x & kHigh), (Vec)(y & kHigh), sum));
#endif
  }
};

// Right operand of a GEMM: rows, or the panels of a PairGemm. at(k, j): vector j of row k. from(j): from column j on.
struct RightRows {
  const float* b;
  int64_t ldb;
  const float* at(int64_t k, int j) const { return b + k * ldb + j * kLanes; }
  RightRows from(int64_t column) const { return {b + column, ldb}; }
};
struct RightPanels {
  const uint32_t* b;
  int64_t panel, first = 0;
  const float* at(int64_t k, int j) const {
    return reinterpret_cast<const float*>(b + pair_at(k, first + j * kLanes, panel));
  }
  RightPanels from(int64_t column) const { return {b, panel, first + column}; }
};
static_assert(kPairColumns % kLanes == 0);

// One register tile of c[m, n] (+)= sum over k of a[i * a_row + k * a_k] * b[k, j]: kRows rows, kVecs column
// vectors, the last one possibly a Part. Each element is one fma chain in ascending k, whatever the tiling.
template <int kRows, int kVecs, class Product, class Right, class Lanes, class Ahead>
inline void gemm_tile(int64_t depth, const typename Product::Left* a, int64_t a_row, int64_t a_k, Right b, float* c,
                      int64_t ldc, bool accumulate, Lanes last, Ahead ahead) {
  Vec acc[kRows][kVecs];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kVecs; ++j) {
      const float* at = c + i * ldc + j * kLanes;
      acc[i][j] = !accumulate ? Vec{} : j + 1 < kVecs ? load(at) : last.load(at);
    }
  }
  const auto multiply = [&](int64_t k) __attribute__((always_inline)) {
    const typename Product::Left* left = a + k * a_k;
    Vec right[kVecs];
#pragma GCC unroll 16
    for (int j = 0; j < kVecs; ++j) right[j] = j + 1 < kVecs ? load(b.at(k, j)) : last.load(b.at(k, j));
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Vec x = Product::spread(left + i * a_row);
#pragma GCC unroll 16
      for (int j = 0; j < kVecs; ++j) acc[i][j] = Product::add(x, right[j], acc[i][j]);
    }
  };
  int64_t k = 0;
  if constexpr (Ahead::kEvery > 0) {
    for (int row = 0; k + Ahead::kEvery <= depth; ++row) {
      ahead.template operator()<kVecs>(row < kRows ? c + row * ldc : nullptr);
      for (int i = 0; i < Ahead::kEvery; ++i) multiply(k++);
    }
  }
  while (k < depth) multiply(k++);
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kVecs; ++j) {
      float* at = c + i * ldc + j * kLanes;
      if (j + 1 < kVecs) {
        store(at, acc[i][j]);
      } else {
        last.store(at, acc[i][j]);
      }
    }
  }
}

// A number as a type.
template <int kN>
struct Count {
  static constexpr int value = kN;
};

// Rows of a register tile of kVecs column vectors: as many accumulators as hide the latency of fma and fit the
// registers (32 with AVX-512, else 16).
template <int kVecs>
constexpr int kTall = kLanes == 16 ? (kVecs == 4   ? 6
                                      : kVecs == 1 ? 16
                                                   : 8)
                                   : 6;

template <int kVecs, class Product, class Right, class Lanes, class Ahead>
inline void gemm_columns(int64_t rows, int64_t depth, const typename Product::Left* a, int64_t a_row, int64_t a_k,
                         Right b, float* c, int64_t ldc, bool accumulate, Lanes last, Ahead ahead) {
  int64_t i = 0;
  const auto tiles = [&](auto height) {
    constexpr int kRows = decltype(height)::value;
    for (; i + kRows <= rows; i += kRows)
      gemm_tile<kRows, kVecs, Product>(depth, a + i * a_row, a_row, a_k, b, c + i * ldc, ldc, accumulate, last, ahead);
  };
  tiles(Count<kTall<kVecs>>{});
  if constexpr (kTall < kVecs >> 8) tiles(Count<8>{});
  tiles(Count<4>{});
  tiles(Count<2>{});
  tiles(Count<1>{});
}

// c[rows, cols] (+)= a * b, see gemm_tile.
template <class Product, class Right, class Ahead = NoPrefetch>
inline void gemm_block_of(int64_t rows, int64_t cols, int64_t depth, const typename Product::Left* a, int64_t a_row,
                          int64_t a_k, Right b, float* c, int64_t ldc, bool accumulate, Ahead ahead = {}) {
  constexpr int kWide = kLanes == 16 ? 4 : 2;
  int64_t j = 0;
  const auto columns = [&](auto vecs, auto lanes) {
    gemm_columns<decltype(vecs)::value, Product>(rows, depth, a, a_row, a_k, b.from(j), c + j, ldc, accumulate, lanes,
                                                 ahead);
    j += decltype(vecs)::value * kLanes;
  };
  while (j + kWide * kLanes <= cols) columns(Count<kWide>{}, Whole{});
  if constexpr (kWide == 4) {
    if (j + 3 * kLanes <= cols) columns(Count<3>{}, Whole{});
    if (j + 2 * kLanes <= cols) columns(Count<2>{}, Whole{});
  }
  if (j + kLanes <= cols) columns(Count<1>{}, Whole{});
  if (j < cols) columns(Count<1>{}, Part{static_cast<int>(cols - j)});
}

inline void gemm_block(int64_t rows, int64_t cols, int64_t depth, const float* a, int64_t a_row, int64_t a_k,
                       const float* b, int64_t ldb, float* c, int64_t ldc, bool accumulate) {
  gemm_block_of<F32Product>(rows, cols, depth, a, a_row, a_k, RightRows{b, ldb}, c, ldc, accumulate);
}
inline void gemm_block_prefetching(int64_t rows, int64_t cols, int64_t depth, const float* a, int64_t a_row,
                                   int64_t a_k, const float* b, int64_t ldb, float* c, int64_t ldc, bool accumulate,
                                   Upcoming* next) {
  gemm_block_of<F32Product>(rows, cols, depth, a, a_row, a_k, RightRows{b, ldb}, c, ldc, accumulate, Prefetch<2>{next});
}

// A PairGemm.
inline void gemm_of_pairs(int64_t m, int64_t n, int64_t pairs, const uint16_t* a, int64_t lda, const uint32_t* b,
                          int64_t panel, float* c, int64_t ldc, bool more, Upcoming* next) {
  for (int64_t k = 0; k == 0 || k < pairs; k += kPairDepth) {
    const auto multiply = [&](auto ahead) {
      gemm_block_of<PairProduct>(m, n, least(kPairDepth, pairs - k), a + 2 * k, lda, 2,
                                 RightPanels{b + k * kPairColumns, panel}, c, ldc, more || k > 0, ahead);
    };
    next != nullptr ? multiply(Prefetch<3>{next}) : multiply(NoPrefetch{});
  }
}

}  // namespace
}  // namespace gt::cpu
