// PairGemm on AMX tiles: a register of 16 rows by 16 pairs of a, one of 16 pairs by 16 columns of b, and their product
// of 16 x 16 sums. An instruction adds 16 pairs to a sum, odd and even elements apart, so sums depend on where groups
// of 16 pairs begin: at multiples of 16.
#include "kernels/cpu/simd/amx_products.h"
#include "kernels/cpu/simd/amx_tiles.h"

namespace gt::cpu {
namespace {

constexpr int64_t kRowBytes = 4 * kTile;  // of a panel of b
static_assert(kTile == kPairColumns);

struct Product {
  int64_t pairs;
  const uint16_t* a;
  int64_t lda;
  const uint32_t* b;
  int64_t panel;
  float* c;
  int64_t ldc;
};

// One tile of c, `depth` pairs at a time.
void one_tile(const Product& p, int64_t depth, bool more) {
  const int64_t to = p.ldc * 4, left = p.lda * 2;  // bytes between rows
  if (more) {
    _tile_loadd(0, p.c, to);
  } else {
    _tile_zero(0);
  }
  for (int64_t k = 0; k < p.pairs; k += depth) {
    _tile_loadd(4, p.a + 2 * k, left);
    _tile_loadd(6, p.b + k * kTile, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
  }
  _tile_stored(0, p.c, to);
}

// Which of the memory that is used next is prefetched with a product of tiles. Few lines at a time, so that the tiles'
// own loads are not held up.
constexpr int kTurns[8] = {0, 1, 2, 1, 0, 1, 2, 0};

// Two by two tiles of c: four products for four loads.
void four_tiles(const Product& p, int64_t depth, bool more, Upcoming* next) {
  const int64_t to = p.ldc * 4, left = p.lda * 2;
  float* below = p.c + kTile * p.ldc;
  if (more) {
    _tile_loadd(0, p.c, to);
    _tile_loadd(1, p.c + kTile, to);
    _tile_loadd(2, below, to);
    _tile_loadd(3, below + kTile, to);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < p.pairs; k += depth) {
    const uint16_t* a = p.a + 2 * k;
    const uint32_t* b = p.b + k * kTile;
    if (next != nullptr) prefetch_some(next[kTurns[k / kTile % 8]]);
    _tile_loadd(4, a, left);
    _tile_loadd(6, b, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + p.panel, kRowBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + kTile * p.lda, left);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, p.c, to);
  _tile_stored(1, p.c + kTile, to);
  _tile_stored(2, below, to);
  _tile_stored(3, below + kTile, to);
}

// A row of tiles, or two, over p.pairs pairs.
void row_of_tiles(int64_t tall, int64_t n, int64_t depth, const Product& p, bool more, Upcoming* next) {
  for (int64_t j = 0; j < n;) {
    const bool four = tall == 2 * kTile && j + 2 * kTile <= n;
    Product at = p;
    at.b += j / kTile * p.panel, at.c += j;
    if (four) {
      four_tiles(at, depth, more, next);
      j += 2 * kTile;
      continue;
    }
    one_tile(at, depth, more);
    if (tall == 2 * kTile) {
      at.a += kTile * p.lda, at.c += kTile * p.ldc;
      one_tile(at, depth, more);
    }
    j += kTile;
  }
}

// Rows of whole tiles, or fewer rows than a tile has; as for rows, so for pairs. A block of two rows of tiles of a
// stays in the L1 cache for all columns.
void some_rows(int64_t m, int64_t n, int64_t depth, const Product& p, bool more, Upcoming* next) {
  configure_tiles(m < kTile ? m : kTile, depth, kTile);
  for (int64_t i = 0, tall = 0; i < m; i += tall) {
    tall = i + 2 * kTile <= m ? 2 * kTile : kTile;
    for (int64_t k = 0; k < p.pairs; k += kPairDepth) {
      Product at = p;
      at.pairs = p.pairs - k < kPairDepth ? p.pairs - k : kPairDepth;
      at.a += i * p.lda + 2 * k, at.b += k * kTile, at.c += i * p.ldc;
      row_of_tiles(tall, n, depth, at, more || k > 0, next);
    }
  }
}

}  // namespace

void pair_gemm_amx(int64_t m, int64_t n, int64_t pairs, const uint16_t* a, int64_t lda, const uint32_t* b,
                   int64_t panel, float* c, int64_t ldc, bool more, Upcoming* next) {
  const int64_t whole_rows = m / kTile * kTile, whole_pairs = pairs / kTile * kTile;
  const auto depths = [&](int64_t first, int64_t rows) {
    const uint16_t* left = a + first * lda;
    float* to = c + first * ldc;
    if (whole_pairs > 0) some_rows(rows, n, kTile, {whole_pairs, left, lda, b, panel, to, ldc}, more, next);
    const int64_t rest = pairs - whole_pairs;
    if (rest > 0)
      some_rows(rows, n, rest, {rest, left + 2 * whole_pairs, lda, b + whole_pairs * kTile, panel, to, ldc},
                more || whole_pairs > 0, next);
  };
  if (whole_rows > 0) depths(0, whole_rows);
  if (m > whole_rows) depths(whole_rows, m - whole_rows);
  release_tiles();
}

}  // namespace gt::cpu
