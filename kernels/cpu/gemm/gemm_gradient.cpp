#include "kernels/cpu/gemm/gemm_gradient.h"

#include <algorithm>
#include <array>
#include <span>

#include "kernels/cpu/context.h"
#include "kernels/cpu/gemm/gemm_cache.h"
#include "kernels/cpu/simd/simd.h"

namespace gt::cpu {
namespace {

constexpr int64_t kBlocks = 8;  // blocks whose sums are held at a time

struct Tile {
  int64_t row, col, rows, cols;
};

struct Job {
  int64_t m, n, k;
  const float *a, *b;
  const Simd* simd;

  int64_t panels() const { return (n + kRowsPanel - 1) / kRowsPanel; }
  int64_t tiles() const { return (m + kTileRows - 1) / kTileRows * panels(); }
  Tile tile(int64_t i) const {
    const int64_t row = i / panels() * kTileRows, col = i % panels() * kRowsPanel;
    return {row, col, std::min(kTileRows, m - row), std::min(kRowsPanel, n - col)};
  }
};

int64_t count_blocks(int64_t k) {
  int64_t count = 0;
  for (; k > 0; ++count) k -= gradient_block(k);
  return count;
}

// Rows [first, end) of the inner dimension, summed in `to`, [m, n].
struct Block {
  int64_t first, end;
  float* to;
};

// Whole rows of a matrix of `cols` columns.
Upcoming rows_of(const float* x, int64_t cols, int64_t first, int64_t count) {
  return {x + first * cols, cols, count, cols};
}

// Tiles [begin, end) of a block. A few rows of a and b are used for all tiles while in cache, and the next ones are
// prefetched meanwhile.
void run_block(const Job& job, const Block& block, int64_t begin, int64_t end) {
  constexpr int64_t kDepth = 128;  // rows of a and b
  for (int64_t p = block.first; p < block.end; p += kDepth) {
    const int64_t depth = std::min(kDepth, block.end - p), after = std::min(kDepth, block.end - p - depth);
    Upcoming next[2];
    if (after > 0) next[0] = rows_of(job.a, job.m, p + depth, after), next[1] = rows_of(job.b, job.n, p + depth, after);
    for (int64_t i = begin; i < end; ++i) {
      const Tile t = job.tile(i);
      job.simd->gemm_block(t.rows, t.cols, depth, job.a + p * job.m + t.row, 1, job.m, job.b + p * job.n + t.col, job.n,
                           block.to + t.row * job.n + t.col, job.n, p > block.first, next);
    }
  }
}

// Tiles [begin, end) of all blocks, those of block 0 first.
void run_tiles(const Job& job, std::span<const Block> blocks, int64_t begin, int64_t end) {
  for (const Block& block : blocks) {
    if (begin < job.tiles() && end > 0) run_block(job, block, std::max(begin, int64_t{0}), std::min(end, job.tiles()));
    begin -= job.tiles(), end -= job.tiles();
  }
}

}  // namespace

void gemm_gradient(const Gemm& g, Stream s) {
  const int64_t m = g.out.shape.rows(), n = g.out.shape.cols(), size = m * n;
  const Job job{m, n, g.a.numel() / m, g.a.as<float>(), g.b.as<float>(), &simd()};
  float* out = g.out.as<float>();
  float* sums = cpu_context(s).gemm().block_sums(std::min(count_blocks(job.k), kBlocks) * size);
  for (int64_t first = 0; first < job.k;) {
    std::array<Block, kBlocks> all;
    int64_t count = 0, held = 0;
    for (; count < kBlocks && first < job.k; ++count) {
      const bool adds = g.accumulate || first > 0;
      const int64_t end = first + gradient_block(job.k - first);
      all[static_cast<size_t>(count)] = {first, end, adds ? sums + held++ * size : out};
      first = end;
    }
    const std::span blocks(all.data(), static_cast<size_t>(count));
    parallel_for(s, count * job.tiles(), 1,
                 [&](int64_t begin, int64_t end, int) { run_tiles(job, blocks, begin, end); });
    if (held == 0) continue;
    parallel_for(s, size, 4096, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = 0; i < held; ++i) job.simd->add(out + begin, sums + i * size + begin, out + begin, end - begin);
    });
  }
}

}  // namespace gt::cpu
