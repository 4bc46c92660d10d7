// f32 GEMM by products of bf16 parts (SplitGemm), where the processor has tiles for them: about twice the rate of its
// f32 arithmetic. Both operands are split once, block by block of the inner dimension: the one with fewer rows or
// columns before the others' tiles, the other one tile by tile in the cache of the thread that uses it.
#pragma once
#include <optional>

#include "kernels/cpu/gemm/gemm_cache.h"
#include "kernels/cpu/gemm/gemm_result.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/ops.h"

namespace gt::cpu {

// One GEMM out [m, n] = op(a) op(b) of f32. Sums over parts of the inner dimension, whose length it determines, are
// added in order, so the bits of an element depend on its row of a and column of b alone.
class SplitProduct {
 public:
  // Returns nullopt where the processor or the dtype does not suit. `staged`: results are not computed in place. The
  // operands of `g` outlive the result.
  static std::optional<SplitProduct> of(const Gemm& g, int64_t m, int64_t n, int64_t k, int threads, bool staged);

  // Computes c, [m, n], in place (`more`: adds to it) or, staged, tile by tile, dense. Calls done(thread, tile, its
  // result) for every tile once it is complete; staged results are valid until it returns.
  void run(float* c, bool more, GemmCache& cache, ThreadPool& pool,
           FunctionRef<void(int thread, const GemmTile&, float* result)> done) const;

 private:
  // One operand: a, or b with `left` false.
  struct Operand {
    const float* x;
    int64_t stride, count;  // count: rows of a or columns of b
    bool left, columns;     // columns: the inner dimension is the first one in memory
  };
  struct Block {
    int64_t first, depth;
    int64_t steps() const { return (depth + kSplitStep - 1) / kSplitStep; }
    int64_t tile() const { return steps() * kSplitTile; }  // pairs of a tile of an operand
  };
  void split(const Operand& x, int64_t first, int64_t count, const Block& block, uint32_t* to) const;
  Upcoming source(int64_t first, const Block& block) const;
  GemmTile tile_at(int64_t own, int64_t shared) const;
  struct Memory {
    const uint32_t *shared, *own;  // both operands of a block, own_ from the tile on
    float *c, *sum;                // sum: of a chain that is added to c
    bool adds;
  };
  void run_tile(int64_t at, Upcoming after, const Block& block, const Memory& memory,
                FunctionRef<void(const GemmTile&, float*)> done) const;

  Operand shared_{}, own_{};                       // fewer rows or columns; more
  int64_t k_ = 0, n_ = 0, chain_ = 0, depth_ = 0;  // chain: elements summed at a time; depth: of a block
  int64_t width_ = 0, strip_ = 0;                  // rows or columns of own_ in a tile, of shared_ at a time
  bool staged_ = false;
  SplitGemm product_ = nullptr;
  const Simd* simd_ = nullptr;
};

}  // namespace gt::cpu
