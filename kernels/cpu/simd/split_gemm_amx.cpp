// SplitGemm on AMX tiles: six products of 16 x 16 pairs of bf16 parts for one of f32. A part of a tile is used up to
// three times once it is in a register, so the tiles' arithmetic is the limit, where products of plain bf16 wait for
// the L2 cache.
#include "kernels/cpu/simd/amx_products.h"
#include "kernels/cpu/simd/amx_tiles.h"

namespace gt::cpu {
namespace {

constexpr int64_t kPart = kTile * kTile;  // pairs of a part of a tile
static_assert(kSplitTile == 3 * kPart);
constexpr int64_t kRowBytes = 4 * kTile;  // of a part

struct Product {
  int64_t steps;
  const uint32_t* a;
  int64_t a_tile;
  const uint32_t* b;
  int64_t b_tile;
  float* c;
  int64_t ldc;
};

// One tile of c. Both functions add the same products in the same order: small ones first, which rounds the sum of one
// step less.
void one_tile(const Product& p) {
  _tile_zero(0);
  const uint32_t *a = p.a, *b = p.b;
  for (int64_t s = 0; s < p.steps; ++s, a += kSplitTile, b += kSplitTile) {
    _tile_loadd(4, a + 2 * kPart, kRowBytes);
    _tile_loadd(6, b, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, a + kPart, kRowBytes);
    _tile_dpbf16ps(0, 5, 6);
    _tile_loadd(7, b + kPart, kRowBytes);
    _tile_dpbf16ps(0, 5, 7);
    _tile_loadd(4, a, kRowBytes);
    _tile_dpbf16ps(0, 4, 7);
    _tile_loadd(7, b + 2 * kPart, kRowBytes);
    _tile_dpbf16ps(0, 4, 7);
    _tile_dpbf16ps(0, 4, 6);
  }
  _tile_stored(0, p.c, p.ldc * 4);
}

inline void load_left(const uint32_t* a, int64_t below) {
  _tile_loadd(4, a, kRowBytes);
  _tile_loadd(5, a + below, kRowBytes);
}

inline void load_right(const uint32_t* b, int64_t beside) {
  _tile_loadd(6, b, kRowBytes);
  _tile_loadd(7, b + beside, kRowBytes);
}

// Four products; meanwhile prefetches a little of what is used next.
inline void multiply(Upcoming& next) {
  prefetch_some(next);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

// Two by two tiles of c: 24 products for 14 loads.
void four_tiles(const Product& p, Upcoming* next) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const uint32_t *a = p.a, *b = p.b;
  for (int64_t s = 0; s < p.steps; ++s, a += kSplitTile, b += kSplitTile) {
    load_left(a + 2 * kPart, p.a_tile);
    load_right(b, p.b_tile);
    multiply(next[0]);
    load_left(a + kPart, p.a_tile);
    multiply(next[1]);
    load_right(b + kPart, p.b_tile);
    multiply(next[0]);
    load_left(a, p.a_tile);
    multiply(next[2]);
    load_right(b + 2 * kPart, p.b_tile);
    multiply(next[0]);
    load_right(b, p.b_tile);
    multiply(next[1]);
  }
  const int64_t to = p.ldc * 4;
  float* below = p.c + kTile * p.ldc;
  _tile_stored(0, p.c, to);
  _tile_stored(1, p.c + kTile, to);
  _tile_stored(2, below, to);
  _tile_stored(3, below + kTile, to);
}

// m x n sums, each a multiple of the tile or less than one.
void some_tiles(int64_t m, int64_t n, const Product& p, Upcoming* next) {
  configure_tiles(m < kTile ? m : kTile, kTile, n < kTile ? n : kTile);
  for (int64_t i = 0, tall = 0; i < m; i += tall) {
    tall = i + 2 * kTile <= m ? 2 * kTile : kTile;
    for (int64_t j = 0, wide = 0; j < n; j += wide) {
      wide = tall == 2 * kTile && j + 2 * kTile <= n ? 2 * kTile : kTile;
      Product at = p;
      at.a += i / kTile * p.a_tile, at.b += j / kTile * p.b_tile, at.c += i * p.ldc + j;
      if (wide == 2 * kTile) {
        four_tiles(at, next);
        continue;
      }
      one_tile(at);
      if (tall == kTile) continue;
      at.a += p.a_tile, at.c += kTile * p.ldc;
      one_tile(at);
    }
  }
}

}  // namespace

void split_gemm_amx(int64_t m, int64_t n, int64_t steps, const uint32_t* a, int64_t a_tile, const uint32_t* b,
                    int64_t b_tile, float* c, int64_t ldc, Upcoming* next) {
  const int64_t rows = m / kTile * kTile, columns = n / kTile * kTile;
  const auto part = [&](int64_t row, int64_t height, int64_t column, int64_t width) {
    if (height == 0 || width == 0) return;
    some_tiles(
        height, width,
        {steps, a + row / kTile * a_tile, a_tile, b + column / kTile * b_tile, b_tile, c + row * ldc + column, ldc},
        next);
  };
  part(0, rows, 0, columns);
  part(rows, m - rows, 0, columns);
  part(0, rows, columns, n - columns);
  part(rows, m - rows, columns, n - columns);
  release_tiles();
}

}  // namespace gt::cpu
