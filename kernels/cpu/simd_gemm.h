// In-register GEMMs on cache-resident blocks, used by attention and, tile by tile, by gemm.cpp. Body of
// simd_{scalar,avx2,avx512}.cpp.
#pragma once
#include "kernels/cpu/simd.h"
#include "kernels/cpu/vec.h"

namespace gt::cpu {
namespace {

constexpr int64_t kBlock = kAttentionBlock;
static_assert(kBlock % kLanes == 0);

// One register tile of c[m, n] (+)= sum over k of a[i * a_row + k * a_k] * b[k * ldb + j]: kRows rows, kVecs column
// vectors, the last one possibly a Part. Each element is one fma chain in ascending k, whatever the tiling.
template <int kRows, int kVecs, class Lanes>
inline void gemm_tile(int64_t depth, const float* a, int64_t a_row, int64_t a_k, const float* b, int64_t ldb, float* c,
                      int64_t ldc, bool accumulate, Lanes last) {
  Vec acc[kRows][kVecs];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kVecs; ++j) {
      const float* at = c + i * ldc + j * kLanes;
      acc[i][j] = !accumulate ? Vec{} : j + 1 < kVecs ? load(at) : last.load(at);
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    const float *row = b + k * ldb, *left = a + k * a_k;
    Vec right[kVecs];
#pragma GCC unroll 16
    for (int j = 0; j < kVecs; ++j) right[j] = j + 1 < kVecs ? load(row + j * kLanes) : last.load(row + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Vec x = splat(left[i * a_row]);
#pragma GCC unroll 16
      for (int j = 0; j < kVecs; ++j) acc[i][j] = fma(x, right[j], acc[i][j]);
    }
  }
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

template <int kVecs, class Lanes>
inline void gemm_columns(int64_t rows, int64_t depth, const float* a, int64_t a_row, int64_t a_k, const float* b,
                         int64_t ldb, float* c, int64_t ldc, bool accumulate, Lanes last) {
  int64_t i = 0;
  const auto tiles = [&](auto height) {
    constexpr int kRows = decltype(height)::value;
    for (; i + kRows <= rows; i += kRows)
      gemm_tile<kRows, kVecs>(depth, a + i * a_row, a_row, a_k, b, ldb, c + i * ldc, ldc, accumulate, last);
  };
  tiles(Count<kTall<kVecs>>{});
  if constexpr (kTall < kVecs >> 8) tiles(Count<8>{});
  tiles(Count<4>{});
  tiles(Count<2>{});
  tiles(Count<1>{});
}

// c[rows, cols] (+)= a * b, see gemm_tile.
void gemm_block(int64_t rows, int64_t cols, int64_t depth, const float* a, int64_t a_row, int64_t a_k, const float* b,
                int64_t ldb, float* c, int64_t ldc, bool accumulate) {
  constexpr int kWide = kLanes == 16 ? 4 : 2;
  int64_t j = 0;
  const auto columns = [&](auto vecs, auto lanes) {
    gemm_columns<decltype(vecs)::value>(rows, depth, a, a_row, a_k, b + j, ldb, c + j, ldc, accumulate, lanes);
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

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

}  // namespace
}  // namespace gt::cpu
