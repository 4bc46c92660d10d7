// LayerNorm, RMSNorm and dropout on the CPU: rows in parallel. Gradients of gamma, beta and the preceding bias are
// summed by blocks of rows, added in order. 16-bit rows are staged in thread scratch; a 16-bit sum is normalized as
// stored.
#include <algorithm>
#include <numeric>

#include "kernels/cpu/check_args.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/cast_16bit.h"
#include "kernels/cpu/simd/fp8_tile.h"
#include "kernels/cpu/simd/simd.h"

namespace gt::cpu {
namespace {
// Rows whose dgamma and dbeta are summed together; affects the bits of the result.
constexpr int64_t kRowBlock = kSumBlock;

int64_t row_grain(int64_t cols) { return std::max<int64_t>(1, 8192 / std::max<int64_t>(1, cols)); }

// Scratch rows of one thread, indexed by an enum.
class ScratchRows {
 public:
  ScratchRows(CpuContext& context, int thread, int count, int64_t cols)
      : cols_((cols + 15) / 16 * 16), base_(context.thread_scratch<float>(thread, count * cols_)) {}
  float* operator[](int i) const { return base_ + i * cols_; }

 private:
  int64_t cols_;
  float* base_;
};

// out = x * mask for one row; `factors` is scratch.
void drop_row(const Simd& f, const RowDrop& drop, int64_t row, int64_t cols, const float* x, float* factors,
              float* out) {
  f.dropout_factors(drop.mask, drop.sample(row), drop.element(row, cols), cols, factors);
  f.multiply(x, factors, out, cols);
}
}  // namespace

void dropout(const Dropout& p, Stream s) {
  require_same("dropout", {"x", p.x}, {{"out", p.out}});
  require_numel("dropout", p.out.numel(), {{"x", p.x}});
  GT_CHECK(p.drop.rows.seq > 0, "dropout: seq ", p.drop.rows.seq);
  GT_CHECK(p.drop.width == 0 || p.drop.first_column + p.x.shape.cols() <= p.drop.width, "dropout: columns from ",
           p.drop.first_column, " of ", p.drop.width);
  const int64_t cols = p.x.shape.cols(), rows = cols ? p.x.numel() / cols : 0;
  CpuContext& context = cpu_context(s);
  parallel_for(s, rows, row_grain(cols), [&, &f = simd()](int64_t begin, int64_t end, int thread) {
    enum { kFactors, kRow, kCount };
    const ScratchRows scratch(context, thread, kCount, cols);
    for (int64_t r = begin; r < end; ++r) {
      const int64_t at = r * cols;
      drop_row(f, p.drop, r, cols, read(f, p.x, at, cols, scratch[kRow]), scratch[kFactors],
               target(p.out, at, scratch[kRow]));
      write(f, p.out, at, cols, scratch[kRow]);
    }
  });
}

namespace {

enum NormScratch { kX, kDelta, kFactors, kSum, kOut, kGamma, kBeta, kNormScratchRows };

void validate(const LayerNorm& p, int64_t rows, int64_t cols) {
  const char* op = "layer_norm";
  const bool rms = p.kind == NormKind::kRms;
  const Fp8Out& fp8 = p.fp8;
  require_same(op, {"x", p.x}, {{"sum", p.sum}, {"out", p.out}});
  require_same_or_narrower(op, {"x", p.x}, {{"delta", p.delta}});
  require_same_or_f32(op, {"x", p.x}, {{"gamma", p.gamma}, {"beta", p.beta}});
  require_f32(op, {{"mean", p.mean}, {"rstd", p.rstd}});
  require_numel(op, rows * cols, {{"x", p.x}});
  GT_CHECK(!rms || (!p.beta && !p.mean), op, ": RMSNorm has no beta and no mean");
  if (!rms) require_numel(op, cols, {{"beta", p.beta}});
  if (!rms) require_numel(op, rows, {{"mean", p.mean}});
  require_numel(op, rows, {{"rstd", p.rstd}});
  if (p.delta) require_numel(op, rows * cols, {{"delta", p.delta}, {"sum", p.sum}});
  GT_CHECK(!p.drop || p.delta, op, ": dropout without a delta to act on");
  require_dtype(op, DType::kF8E4M3, {{"rowwise", fp8.rowwise}, {"columnwise", fp8.columnwise}});
  require_f32(op, {{"amax", fp8.amax}, {"scale_inv", fp8.scale_inv}, {"step_amax", fp8.step_amax}});
  GT_CHECK(p.out || fp8.quantizes(), op, ": no output requested (out or FP8 data)");
  for (const Tensor* t : {&p.out, &fp8.rowwise, &fp8.columnwise})
    if (*t) require_numel(op, rows * cols, {{"out or FP8 data", *t}});
  if (fp8.quantizes()) require_numel(op, 1, {{"amax", fp8.amax}, {"scale_inv", fp8.scale_inv}});
  if (fp8.step_amax) require_numel(op, 1, {{"step_amax", fp8.step_amax}});
}

// Norm weights in f32, with their offset.
template <class Args>
const float* weights(const Simd& f, const Args& p, int64_t cols, float* scratch) {
  const float* gamma = read(f, p.gamma, 0, cols, scratch);
  if (p.kind != NormKind::kRms || p.gamma_offset == 0) return gamma;
  f.add_scalar(gamma, p.gamma_offset, scratch, cols);
  return scratch;
}

// Normalizes rows [begin, end). `staged`: scratch row for out, rounded to its dtype, when it is quantized.
void norm_rows(const LayerNorm& p, const Simd& f, int64_t begin, int64_t end, const ScratchRows& scratch,
               int staged = -1) {
  const int64_t cols = p.gamma.numel();
  const bool rms = p.kind == NormKind::kRms;
  const float* gamma = weights(f, p, cols, scratch[kGamma]);
  const float* beta = rms ? nullptr : read(f, p.beta, 0, cols, scratch[kBeta]);
  const auto norm = rms ? f.rms_norm : f.layer_norm;
  for (int64_t r = begin; r < end; ++r) {
    const int64_t at = r * cols;
    const float* x = read(f, p.x, at, cols, scratch[kX]);
    const float* delta = p.delta ? read(f, p.delta, at, cols, scratch[kDelta]) : nullptr;
    if (p.drop) {
      drop_row(f, p.drop, r, cols, delta, scratch[kFactors], scratch[kDelta]);
      delta = scratch[kDelta];
    }
    if (delta != nullptr && is_16bit(p.sum.dtype)) {  // the norm reads the sum as stored
      f.add(x, delta, scratch[kSum], cols);
      write(f, p.sum, at, cols, scratch[kSum]);
      x = read(f, p.sum, at, cols, scratch[kSum]);
      delta = nullptr;
    }
    float* out = p.out ? target(p.out, at, scratch[kOut]) : scratch[kOut];
    norm(x, delta, gamma, beta, delta ? p.sum.as<float>() + at : nullptr, out, rms ? nullptr : p.mean.as<float>() + r,
         p.rstd.as<float>() + r, cols, p.eps);
    if (p.out) write(f, p.out, at, cols, scratch[kOut]);
    if (staged < 0) continue;
    float* to = scratch[staged + static_cast<int>(r - begin)];
    std::copy_n(out, cols, to);
    if (is_16bit(p.x.dtype)) {
      auto* rounded = reinterpret_cast<uint16_t*>(scratch[kOut]);
      narrow(f, p.x.dtype, to, rounded, cols);
      widen(f, p.x.dtype, rounded, to, cols);
    }
  }
}

// Norm with FP8 output or amax, computed while a block of rows is in cache.
void norm_fp8(const LayerNorm& p, int64_t rows, int64_t cols, Stream s) {
  Fp8Dest to{p.fp8.rowwise, p.fp8.columnwise, 1, rows, cols};
  if (to) {
    to.scale = fp8_scale(*p.fp8.amax.as<float>(), to.format());
    *p.fp8.scale_inv.as<float>() = 1 / to.scale;
  }
  CpuContext& context = cpu_context(s);
  const int64_t blocks = (rows + kCodeTile - 1) / kCodeTile;
  float* most = context.scratch<float>(blocks);
  parallel_for(s, blocks, 1, [&, &f = simd()](int64_t begin, int64_t end, int thread) {
    const ScratchRows scratch(context, thread, kNormScratchRows + kCodeTile, cols);
    for (int64_t b = begin; b < end; ++b) {
      const int64_t r0 = b * kCodeTile, h = std::min(kCodeTile, rows - r0);
      norm_rows(p, f, r0, r0 + h, scratch, kNormScratchRows);
      most[b] = 0;
      for (int r = 0; p.fp8.step_amax && r < h; ++r)
        most[b] = std::max(most[b], f.max_abs(scratch[kNormScratchRows + r], cols));
      for (int64_t c = 0; to && c < cols; c += kCodeTile)
        to.put(scratch[kNormScratchRows] + c, scratch[kNormScratchRows + 1] - scratch[kNormScratchRows], r0, c, h,
               std::min(kCodeTile, cols - c));
    }
  });
  if (!p.fp8.step_amax) return;
  float all = p.fp8.overwrite_amax ? 0 : *p.fp8.step_amax.as<float>();
  for (int64_t b = 0; b < blocks; ++b) all = std::max(all, most[b]);
  *p.fp8.step_amax.as<float>() = all;
}

}  // namespace

void layer_norm(const LayerNorm& p, Stream s) {
  const int64_t cols = p.gamma.numel(), rows = cols ? p.x.numel() / cols : 0;
  validate(p, rows, cols);
  if (p.fp8) return norm_fp8(p, rows, cols, s);
  CpuContext& context = cpu_context(s);
  parallel_for(s, rows, row_grain(cols), [&, &f = simd()](int64_t begin, int64_t end, int thread) {
    norm_rows(p, f, begin, end, ScratchRows(context, thread, kNormScratchRows, cols));
  });
}

namespace {

void validate(const LayerNormGrad& p, int64_t rows, int64_t cols) {
  const char* op = "layer_norm_grad";
  const bool rms = p.kind == NormKind::kRms;
  require_same(op, {"x", p.x}, {{"dout", p.dout}, {"dsum", p.dsum}, {"dx", p.dx}});
  require_same_or_narrower(op, {"x", p.x}, {{"ddelta", p.ddelta}});
  require_same_or_f32(op, {"x", p.x}, {{"gamma", p.gamma}});
  require_f32(op, {{"mean", p.mean}, {"rstd", p.rstd}});
  require_gradient(op, {{"dgamma", p.dgamma}, {"dbeta", p.dbeta}, {"dbias", p.dbias}});
  require_numel(op, rows * cols, {{"x", p.x}, {"dout", p.dout}});
  GT_CHECK(!rms || (!p.dbeta && !p.mean), op, ": RMSNorm has no beta and no mean");
  if (!rms) require_numel(op, rows, {{"mean", p.mean}});
  require_numel(op, rows, {{"rstd", p.rstd}});
  if (p.dx) require_numel(op, rows * cols, {{"dx", p.dx}});
  if (p.dsum) require_numel(op, rows * cols, {{"dsum", p.dsum}});
  if (p.drop) require_numel(op, rows * cols, {{"ddelta", p.ddelta}});
  GT_CHECK(!p.drop || (p.dx && !p.accumulate_dx), op, ": with dropout dx is written, not accumulated");
  for (const Tensor* t : {&p.dgamma, &p.dbeta, &p.dbias}) {
    if (*t) require_numel(op, cols, {{"dgamma, dbeta or dbias", *t}});
  }
  GT_CHECK(!p.dbias || p.dx, op, ": dbias without dx");
  require_dtype(op, DType::kF8E5M2, {{"rowwise", p.fp8.rowwise}, {"columnwise", p.fp8.columnwise}});
  GT_CHECK(p.dx || !p.fp8, op, ": FP8 data of delta's gradient without dx");
}

// Partial sums per block of rows: one row per block, `stride` apart; nullptr: not computed.
struct BlockSums {
  float *dgamma, *dbeta, *dbias;
  int64_t stride;
};

// Gradient over rows [begin, end): whole blocks, or up to the last row.
void norm_grad_rows(const LayerNormGrad& p, const Simd& f, int64_t begin, int64_t end, const BlockSums& sums,
                    CpuContext& context, int thread) {
  enum { kX, kDout, kDsum, kDx, kGamma, kFactors, kDelta, kCount };
  const int64_t cols = p.gamma.numel();
  const ScratchRows scratch(context, thread, kCount, cols);
  const float* gamma = p.dx ? weights(f, p, cols, scratch[kGamma]) : nullptr;
  const bool rms = p.kind == NormKind::kRms;
  const auto norm_grad = rms ? f.rms_norm_grad : f.layer_norm_grad;
  for (int64_t r = begin; r < end; ++r) {
    const int64_t at = r * cols, block = r / kRowBlock * sums.stride;
    const float* x = read(f, p.x, at, cols, scratch[kX]);
    const float* dout = read(f, p.dout, at, cols, scratch[kDout]);
    const float* dsum = p.dsum ? read(f, p.dsum, at, cols, scratch[kDsum]) : nullptr;
    const bool more = p.dx && p.accumulate_dx;
    if (more) read(f, p.dx, at, cols, scratch[kDx]);
    // Without dx, all rows write it to the same scratch, with x in place of gamma: the other gradients are unaffected.
    float* dx = p.dx ? target(p.dx, at, scratch[kDx]) : scratch[kDx];
    norm_grad(x, p.dx ? gamma : x, rms ? 0 : p.mean.as<float>()[r], p.rstd.as<float>()[r], dout, dsum, dx,
              sums.dgamma ? sums.dgamma + block : nullptr, sums.dbeta ? sums.dbeta + block : nullptr, cols, more,
              r % kRowBlock == 0);
    if (p.dx) write(f, p.dx, at, cols, dx);
    if (p.drop) {
      const float* through = read(f, p.dx, at, cols, scratch[kDx]);
      drop_row(f, p.drop, r, cols, through, scratch[kFactors], target(p.ddelta, at, scratch[kDelta]));
      write(f, p.ddelta, at, cols, scratch[kDelta]);
    }
    if (sums.dbias == nullptr || (r + 1 < end && (r + 1) % kRowBlock != 0)) continue;
    const int64_t first = r / kRowBlock * kRowBlock;  // first row of the completed block, still in cache
    column_sums(f, p.drop ? p.ddelta : p.dx, first * cols, cols, r + 1 - first, sums.dbias + block, cols, false);
  }
}

// Runs grad_rows(begin, end, thread) over all rows, and quantizes delta's gradient, or computes its amax, while a
// tile's rows are in cache. `most`: one value per tile.
template <class GradRows>
void quantize_grad(const LayerNormGrad& p, Stream s, float* most, GradRows grad_rows) {
  static_assert(kCodeTile % kRowBlock == 0);
  const QuantizeFp8 delta{.x = p.drop ? p.ddelta : p.dx, .fp8 = p.fp8};
  const Fp8Dest to = prepare_quantize("layer_norm_grad", delta);
  const int64_t tiles = (to.height + kCodeTile - 1) / kCodeTile;
  parallel_for(s, tiles, 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t t = begin; t < end; ++t) {
      grad_rows(t * kCodeTile, std::min(to.height, (t + 1) * kCodeTile), thread);
      most[t] = quantize_rows(delta, to, t * kCodeTile);
    }
  });
  if (!p.fp8.step_amax) return;
  const float before = p.fp8.overwrite_amax ? 0 : *p.fp8.step_amax.as<float>();
  *p.fp8.step_amax.as<float>() =
      std::accumulate(most, most + tiles, before, [](float a, float b) { return std::max(a, b); });
}

}  // namespace

void layer_norm_grad(const LayerNormGrad& p, Stream s) {
  const int64_t cols = p.gamma.numel(), rows = cols ? p.x.numel() / cols : 0;
  validate(p, rows, cols);
  const int64_t blocks = (rows + kRowBlock - 1) / kRowBlock;
  const int64_t stride = (cols + 15) / 16 * 16;
  CpuContext& context = cpu_context(s);
  float* scratch = context.scratch<float>(3 * blocks * stride + (rows + kCodeTile - 1) / kCodeTile);
  const auto partial = [&](const Tensor& grad, int64_t i) { return grad ? scratch + i * blocks * stride : nullptr; };
  const BlockSums sums{partial(p.dgamma, 0), partial(p.dbeta, 1), partial(p.dbias, 2), stride};
  const Simd& f = simd();
  const auto grad_rows = [&](int64_t begin, int64_t end, int thread) {
    norm_grad_rows(p, f, begin, end, sums, context, thread);
  };
  if (p.fp8)
    quantize_grad(p, s, scratch + 3 * blocks * stride, grad_rows);
  else
    parallel_for(s, rows, kRowBlock, grad_rows);
  parallel_for(s, cols, 256, [&](int64_t begin, int64_t end, int) {
    const auto sum = [&](const float* of_blocks, const Tensor& to, bool accumulate) {
      if (!to) return;
      edit(f, to, begin, end - begin, accumulate, [&](float* all, int64_t c, int64_t n) {
        f.column_sums(of_blocks + begin + c, stride, blocks, all, n, accumulate);
      });
    };
    sum(sums.dgamma, p.dgamma, p.accumulate_dw);
    sum(sums.dbeta, p.dbeta, p.accumulate_dw);
    sum(sums.dbias, p.dbias, p.accumulate_dbias);
  });
}

}  // namespace gt::cpu
