// bf16 GEMM by products of pairs (PairGemm), tile by tile, where the processor multiplies bf16. b is paired block by
// block in the cache of the thread that uses it, for all rows of a tile; of a weight gradient (a transposed) before,
// for all tiles, and rows of a are turned once per row of tiles. Finished rows of a tile are handed on a few at a time,
// while they are in cache.
#pragma once
#include <optional>

#include "kernels/cpu/gemm/gemm_result.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/ops.h"

namespace gt::cpu {

// One GEMM out [m, n] = op(a) op(b) of bf16. The bits of an element do not depend on the tiling, which may therefore
// depend on the number of threads.
class PairedGemm {
 public:
  using Tile = GemmTile;

  // Returns nullopt where the processor, the dtype or a size does not suit. The operands of `g` outlive the result.
  static std::optional<PairedGemm> of(const Gemm& g, int64_t m, int64_t n, int64_t k, int threads);

  // Weight gradients: pairs all of b in `to`, all_pairs() pairs, before the first tile.
  int64_t all_pairs() const;
  void pair_all(uint32_t* to, ThreadPool& pool);
  // Weight gradients: turns columns [row, row + rows) of a into rows, which multiply() of their tiles reads in
  // `scratch`.
  void turn(int64_t row, int64_t rows, uint32_t* scratch) const;
  // Memory of a tile in f32, its rows `ldc` apart: that of the result itself, which with `more` is added to; or,
  // `staged`, of staged_rows() rows.
  struct Output {
    float* c;
    int64_t ldc;
    bool more, staged;
  };
  // Computes a tile and calls done(its rows, their result) for some rows after others; a staged result is valid until
  // `done` returns. `after`: the tile that this thread computes next; nullptr: none. scratch: scratch_pairs() pairs of
  // this thread. find_next(rows, next): what `done` of these rows will use, in next[0] and next[1] of PairGemm.
  void multiply(const Tile& t, const Tile* after, uint32_t* scratch, const Output& to,
                FunctionRef<void(const Tile& rows, Upcoming* next)> find_next,
                FunctionRef<void(const Tile& rows, float* c)> done) const;
  int64_t scratch_pairs() const;
  int64_t staged_rows() const;

  int64_t tile_rows = 0, tile_columns = 0;

 private:
  int64_t pairs() const { return (k_ + 1) / 2; }
  int64_t turned_stride() const;
  Upcoming block_of(const Tile& t, int64_t first) const;
  const uint32_t* pair_block(const Tile& t, int64_t first, int64_t depth, uint32_t* to, int64_t* panel) const;

  int64_t m_ = 0, n_ = 0, k_ = 0, depth_ = 0;  // depth: pairs of a block of the inner dimension
  bool trans_a_ = false, trans_b_ = false;
  const uint16_t *a_ = nullptr, *b_ = nullptr;
  const uint32_t* all_ = nullptr;
  PairGemm product_ = nullptr;
  const Simd* simd_ = nullptr;
};

}  // namespace gt::cpu
