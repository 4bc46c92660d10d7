// GEMMs of experts. Forward and input gradients: blocks of rows of one expert times panels of its matrix, gathered and
// widened a block at a time, so that no permuted copy of the tokens exists. Weight gradients: one GEMM per expert.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/check_args.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/gemm/gemm_cache.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/cast_16bit.h"
#include "kernels/cpu/simd/simd.h"

namespace gt::cpu {
namespace {

constexpr int64_t kRowBlock = 128;  // rows of one expert that share a packed panel

// Token of a row in expert order; without slots the row itself.
int64_t source_of(const Tensor& slots, int64_t row, int64_t top_k) {
  return slots ? slots.as<int32_t>()[row] / top_k : row;
}

void check_groups(const char* op, const Tensor& slots, const Tensor& offsets, int64_t experts, int64_t rows) {
  require_dtype(op, DType::kI32, {{"slots", slots}, {"offsets", offsets}});
  GT_CHECK(offsets.numel() == experts + 1 && (!slots || slots.numel() == rows), op, ": ", offsets.numel(),
           " offsets of ", experts, " experts, slots ", to_string(slots.shape), " of ", rows, " rows");
}

struct Block {
  int64_t expert, first, rows;
};

// Operands of a block in f32: element (i, p) of the left one is a[i * lda + p], rows of the right one are ldb apart.
struct Operands {
  const float *a, *b;
  int64_t lda, ldb;
};

// Scratch of a thread, in floats: gathered rows, widened and transposed matrices, results.
constexpr int64_t kGathered = kRowBlock * kRowsDepth, kTurned = kRowsDepth * kRowsPanel, kTile = kRowBlock * kRowsPanel;

// Rows of a, elements [at, at + depth): in place, or gathered and widened in `to`.
void take_rows(const GroupedGemm& g, const Block& block, int64_t at, int64_t depth, float* to, Operands& out) {
  const Simd& f = simd();
  const int64_t k = g.a.shape.cols();
  if (!g.slots && g.a.dtype == DType::kF32) {
    out.a = g.a.as<float>() + block.first * k + at, out.lda = k;
    return;
  }
  out.a = to, out.lda = kRowsDepth;
  for (int64_t r = 0; r < block.rows; ++r, to += kRowsDepth) {
    const float* from = read(f, g.a, source_of(g.slots, block.first + r, g.top_k) * k + at, depth, to);
    if (from != to) std::memcpy(to, from, static_cast<size_t>(depth) * sizeof(float));
  }
}

// Rows [at, at + depth) and columns [col, col + cols) of op(b), the matrix of one expert: in place, or widened and
// transposed in `to`, 2 kTurned floats.
void take_columns(const GroupedGemm& g, const Tensor& b, int64_t at, int64_t depth, int64_t col, int64_t cols,
                  float* to, Operands& out) {
  const Simd& f = simd();
  const int64_t n = g.out.shape.cols(), k = g.a.shape.cols();
  const bool wide = b.dtype != DType::kF32;
  if (!g.trans_b && !wide) {
    out.b = b.as<float>() + at * n + col, out.ldb = n;
    return;
  }
  out.b = to, out.ldb = kRowsPanel;
  if (!g.trans_b) {
    for (int64_t p = 0; p < depth; ++p) read(f, b, (at + p) * n + col, cols, to + p * kRowsPanel);
    return;
  }
  float* rows = to + kTurned;
  for (int64_t c = 0; wide && c < cols; ++c) read(f, b, (col + c) * k + at, depth, rows + c * kRowsDepth);
  const float* from = wide ? rows : b.as<float>() + col * k + at;
  f.transpose_rows(from, wide ? kRowsDepth : k, cols, depth, to);
}

// Computes the rows of `block` in a panel of the result. scratch: kScratch floats.
constexpr int64_t kScratch = kGathered + 2 * kTurned + kTile;
void multiply(const GroupedGemm& g, const Block& block, int64_t panel, float* scratch) {
  const Simd& f = simd();
  const int64_t n = g.out.shape.cols(), k = g.a.shape.cols(), col = panel * kRowsPanel;
  const int64_t cols = std::min(kRowsPanel, n - col);
  const Tensor b = g.b.slice(block.expert, 1);
  float *turned = scratch + kGathered, *tile = turned + 2 * kTurned;
  if (k == 0) std::memset(tile, 0, kTile * sizeof(float));
  for (int64_t at = 0; at < k; at += kRowsDepth) {
    const int64_t depth = std::min(kRowsDepth, k - at);
    Operands x;
    take_rows(g, block, at, depth, scratch, x);
    take_columns(g, b, at, depth, col, cols, turned, x);
    Upcoming next[2];
    f.gemm_block(block.rows, cols, depth, x.a, x.lda, 1, x.b, x.ldb, tile, kRowsPanel, at > 0, next);
  }
  for (int64_t r = 0; r < block.rows; ++r) {
    const int64_t to = (block.first + r) * n + col;
    const float* from = tile + r * kRowsPanel;
    if (g.out.dtype == DType::kF32)
      std::memcpy(g.out.as<float>() + to, from, static_cast<size_t>(cols) * sizeof(float));
    else
      write(f, g.out, to, cols, from);
  }
}

// The i-th block of rows; blocks of an expert follow each other.
Block block_at(const int32_t* offsets, int64_t i) {
  for (int64_t e = 0;; ++e) {
    const int64_t rows = offsets[e + 1] - offsets[e], blocks = (rows + kRowBlock - 1) / kRowBlock;
    if (i < blocks) return {e, offsets[e] + i * kRowBlock, std::min(kRowBlock, rows - i * kRowBlock)};
    i -= blocks;
  }
}

}  // namespace

void grouped_gemm(const GroupedGemm& g, Stream s) {
  require_same("grouped_gemm", {"a", g.a}, {{"b", g.b}, {"out", g.out}});
  const int64_t experts = g.b.shape[0], rows = g.out.shape.rows(), n = g.out.shape.cols(), k = g.a.shape.cols();
  check_groups("grouped_gemm", g.slots, g.offsets, experts, rows);
  GT_CHECK(g.b.shape == (g.trans_b ? Shape{experts, n, k} : Shape{experts, k, n}) &&
               (g.slots && g.top_k == 1 ? rows == 0 || g.a.shape.rows() > 0
                                        : g.a.shape.rows() * (g.slots ? g.top_k : 1) == rows),
           "grouped_gemm: a ", to_string(g.a.shape), ", b ", to_string(g.b.shape), ", out ", to_string(g.out.shape));
  const int32_t* offsets = g.offsets.as<int32_t>();
  int64_t blocks = 0;
  for (int64_t e = 0; e < experts; ++e) blocks += (offsets[e + 1] - offsets[e] + kRowBlock - 1) / kRowBlock;
  const int64_t panels = (n + kRowsPanel - 1) / kRowsPanel;
  parallel_for(s, blocks * panels, 1, [&](int64_t begin, int64_t end, int thread) {
    float* scratch = cpu_context(s).thread_scratch<float>(thread, kScratch);
    for (int64_t i = begin; i < end; ++i) multiply(g, block_at(offsets, i / panels), i % panels, scratch);
  });
}

void grouped_gemm_grad(const GroupedGemmGrad& g, Stream s) {
  require_same("grouped_gemm_grad", {"a", g.a}, {{"b", g.b}});
  require_gradient("grouped_gemm_grad", {{"out", g.out}});
  const int64_t experts = g.out.shape[0], rows = g.slots.numel(), m = g.a.shape.cols(), n = g.b.shape.cols();
  check_groups("grouped_gemm_grad", g.slots, g.offsets, experts, rows);
  GT_CHECK((g.out.shape == Shape{experts, m, n}) && (g.gather_a ? g.b : g.a).shape.rows() == rows &&
               (g.top_k == 1 || (g.gather_a ? g.a : g.b).shape.rows() * g.top_k == rows),
           "grouped_gemm_grad: a ", to_string(g.a.shape), ", b ", to_string(g.b.shape), ", out ",
           to_string(g.out.shape));
  const Tensor& tokens = g.gather_a ? g.a : g.b;
  const int64_t bytes = tokens.shape.cols() * size_of(tokens.dtype);
  const int32_t* offsets = g.offsets.as<int32_t>();
  int64_t most = 0;
  for (int64_t e = 0; e < experts; ++e) most = std::max<int64_t>(most, offsets[e + 1] - offsets[e]);
  std::byte* gathered = cpu_context(s).scratch(most * bytes);
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t first = offsets[e], count = offsets[e + 1] - first;
    Tensor out = g.out;
    out.data += e * m * n * size_of(out.dtype), out.shape = {m, n};
    if (count == 0) {
      if (!g.accumulate) std::memset(out.data, 0, static_cast<size_t>(out.bytes()));
      continue;
    }
    parallel_for(s, count, std::max<int64_t>(1, (1 << 16) / std::max<int64_t>(1, bytes)),
                 [&](int64_t begin, int64_t end, int) {
                   for (int64_t r = begin; r < end; ++r)
                     std::memcpy(gathered + r * bytes, tokens.data + source_of(g.slots, first + r, g.top_k) * bytes,
                                 static_cast<size_t>(bytes));
                 });
    Tensor rows_of_tokens = tokens;
    rows_of_tokens.data = gathered, rows_of_tokens.shape = {count, tokens.shape.cols()};
    const auto own = [&](const Tensor& t) { return t.view({rows, t.shape.cols()}).slice(first, count); };
    gemm({.a = g.gather_a ? rows_of_tokens : own(g.a),
          .b = g.gather_a ? own(g.b) : rows_of_tokens,
          .out = out,
          .trans_a = true,
          .accumulate = g.accumulate},
         s);
  }
}

}  // namespace gt::cpu
