#include "kernels/cpu/gemm/gemm_pairs.h"

#include <algorithm>

namespace gt::cpu {
namespace {

// Most and fewest columns of a tile, its rows, pairs of a block of the inner dimension, rows that are handed on at a
// time: of two tiles of the processor, finished in the L1 cache. A block of b and, with several blocks, the tile stay
// in the L2 cache; wide tiles read a less often.
constexpr int64_t kColumns = 384, kFewColumns = 96, kRows = 1024, kGradientRows = 256, kFewRows = 64, kDepth = 512;
constexpr int64_t kStrip = 32;
constexpr int64_t kLanes = 16;  // of the widest vectors

int64_t parts(int64_t n, int64_t size) { return (n + size - 1) / size; }
const float* as_floats(const uint16_t* p) { return reinterpret_cast<const float*>(p); }

}  // namespace

std::optional<PairedGemm> PairedGemm::of(const Gemm& g, int64_t m, int64_t n, int64_t k, int threads) {
  if (g.a.dtype != DType::kBF16 || n % kLanes != 0 || (!g.trans_a && k % 2 != 0) || (g.trans_a && g.trans_b)) return {};
  PairedGemm p;
  p.product_ = native_pair_gemm();
  if (p.product_ == nullptr) return {};
  p.m_ = m, p.n_ = n, p.k_ = k;
  p.trans_a_ = g.trans_a, p.trans_b_ = g.trans_b;
  p.a_ = g.a.as<uint16_t>(), p.b_ = g.b.as<uint16_t>();
  p.simd_ = &simd();
  const int64_t blocks = parts(p.pairs(), kDepth + kDepth / 8);
  p.depth_ = parts(parts(p.pairs(), blocks), kLanes) * kLanes;
  p.tile_rows = g.trans_a ? kGradientRows : blocks > 1 ? kRows : parts(m, kStrip) * kStrip;
  // Tiles of one width: equally many for all threads, unless that makes them narrow.
  const auto width = [n](int64_t tiles) { return parts(parts(n, tiles), kStrip) * kStrip; };
  const int64_t wide = parts(n, kColumns), equal = parts(wide, threads) * threads;
  p.tile_columns = width(2 * width(equal) > kColumns ? equal : wide);
  // Smaller tiles, unless threads have equally many or enough of them.
  const auto unequal = [&] {
    const int64_t tiles = parts(m, p.tile_rows) * parts(n, p.tile_columns);
    return tiles < 4 * threads && tiles % threads != 0;
  };
  while (p.tile_rows > kFewRows && unequal()) p.tile_rows = parts(p.tile_rows / 2, kFewRows / 2) * (kFewRows / 2);
  while (p.tile_columns > kFewColumns && unequal()) p.tile_columns = width(2 * parts(n, p.tile_columns));
  return p;
}

int64_t PairedGemm::all_pairs() const { return parts(n_, tile_columns) * pairs() * tile_columns; }

void PairedGemm::pair_all(uint32_t* to, ThreadPool& pool) {
  all_ = to;
  pool.parallel_for(parts(n_, tile_columns), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t col = begin * tile_columns; col < std::min(end * tile_columns, n_); col += tile_columns)
      simd_->pair_rows(b_ + col, n_, k_, std::min(tile_columns, n_ - col), pairs() * kPairColumns, to + col * pairs());
  });
}

// Whole vectors, that is cache lines, of the pairs of a row. An odd number, so that rows spread over the sets of the L1
// cache.
int64_t PairedGemm::turned_stride() const { return (parts(pairs(), kLanes) | 1) * kLanes; }

int64_t PairedGemm::scratch_pairs() const { return trans_a_ ? tile_rows * turned_stride() : depth_ * tile_columns; }

int64_t PairedGemm::staged_rows() const { return depth_ < pairs() ? tile_rows : std::min(kStrip, tile_rows); }

void PairedGemm::turn(int64_t row, int64_t rows, uint32_t* scratch) const {
  simd_->turn_pairs(a_ + row, m_, k_, rows, turned_stride(), scratch);
}

// Pairs [first, first + depth) of the tile's columns of b; *panel: the distance between their panels.
const uint32_t* PairedGemm::pair_block(const Tile& t, int64_t first, int64_t depth, uint32_t* to,
                                       int64_t* panel) const {
  *panel = (trans_a_ ? pairs() : depth) * kPairColumns;
  if (trans_a_) return all_ + t.col * pairs() + first * kPairColumns;
  if (trans_b_)
    simd_->turn_rows(b_ + t.col * k_ + 2 * first, k_, t.cols, 2 * depth, *panel, to);
  else
    simd_->pair_rows(b_ + 2 * first * n_ + t.col, n_, 2 * depth, t.cols, *panel, to);
  return to;
}

// What pair_block() will read.
Upcoming PairedGemm::block_of(const Tile& t, int64_t first) const {
  const int64_t depth = std::min(depth_, pairs() - first);
  if (trans_b_) return {.at = as_floats(b_ + t.col * k_ + 2 * first), .stride = k_ / 2, .rows = t.cols, .width = depth};
  return {.at = as_floats(b_ + 2 * first * n_ + t.col), .stride = n_ / 2, .rows = 2 * depth, .width = t.cols / 2};
}

void PairedGemm::multiply(const Tile& t, const Tile* after, uint32_t* scratch, const Output& to,
                          FunctionRef<void(const Tile&, Upcoming*)> find_next,
                          FunctionRef<void(const Tile&, float*)> done) const {
  const uint16_t* a = trans_a_ ? reinterpret_cast<const uint16_t*>(scratch) : a_ + t.row * k_;
  const int64_t lda = trans_a_ ? 2 * turned_stride() : k_;
  const HeldTiles held;
  for (int64_t p = 0; p < pairs(); p += depth_) {
    const int64_t depth = std::min(depth_, pairs() - p);
    int64_t panel = 0;
    const uint32_t* right = pair_block(t, p, depth, scratch, &panel);
    const bool whole = depth == pairs(), last = p + depth == pairs();
    Upcoming block;
    if (!trans_a_ && !(last && after == nullptr)) block = last ? block_of(*after, 0) : block_of(t, p + depth);
    for (int64_t r = 0; r < t.rows; r += kStrip) {
      const Tile rows{t.row + r, t.col, std::min(kStrip, t.rows - r), t.cols};
      const uint16_t* left = a + r * lda + 2 * p;
      float* c = to.staged && whole ? to.c : to.c + r * to.ldc;
      Upcoming next[3];
      next[2] = block;
      if (last) find_next(rows, next);
      if (const int64_t below = std::min(kStrip, t.rows - r - kStrip); below > 0) {
        if (!to.staged) next[0] = {.at = c + kStrip * to.ldc, .stride = to.ldc, .rows = below, .width = t.cols};
        if (next[1].rows == 0)
          next[1] = {.at = as_floats(left + kStrip * lda), .stride = lda / 2, .rows = below, .width = depth};
      }
      product_(rows.rows, t.cols, depth, left, lda, right, panel, c, to.ldc, to.more || p > 0, next);
      block = next[2];
      if (last) done(rows, c);
    }
  }
}

}  // namespace gt::cpu
