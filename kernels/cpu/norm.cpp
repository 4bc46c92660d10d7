// Layer normalisation and dropout on the CPU: rows in parallel; gradients of gamma and beta by blocks of rows, added in
// order.
#include <algorithm>

#include "kernels/cpu/check_args.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"

namespace gt::cpu {
namespace {
constexpr int64_t kRowBlock = 32;  // rows whose dgamma and dbeta are summed together: part of the result's bits

// out = x * mask, one row; `factors` has room for it.
void drop_row(const Simd& f, const RowDrop& drop, int64_t row, int64_t cols, const float* x, float* factors,
              float* out) {
  f.drop_factors(drop.mask, drop.sample(row), drop.position(row) * cols, cols, factors);
  f.multiply(x, factors, out, cols);
}
}  // namespace

void dropout(const Dropout& p, Stream s) {
  require_f32("dropout", {{"x", p.x}, {"out", p.out}});
  require_numel("dropout", p.out.numel(), {{"x", p.x}});
  GT_CHECK(p.drop.seq > 0, "dropout: seq ", p.drop.seq);
  const int64_t cols = p.x.shape.cols(), rows = cols ? p.x.numel() / cols : 0;
  CpuContext& context = cpu_context(s);
  const int64_t grain = std::max<int64_t>(1, 8192 / std::max<int64_t>(1, cols));
  parallel_for(s, rows, grain, [&, &f = simd()](int64_t begin, int64_t end, int thread) {
    float* factors = context.thread_scratch<float>(thread, cols);
    for (int64_t r = begin; r < end; ++r)
      drop_row(f, p.drop, r, cols, p.x.as<float>() + r * cols, factors, p.out.as<float>() + r * cols);
  });
}

void layer_norm(const LayerNorm& p, Stream s) {
  const char* op = "layer_norm";
  require_f32(op, {{"x", p.x},
                   {"delta", p.delta},
                   {"gamma", p.gamma},
                   {"beta", p.beta},
                   {"sum", p.sum},
                   {"out", p.out},
                   {"mean", p.mean},
                   {"rstd", p.rstd}});
  const int64_t cols = p.gamma.numel(), rows = cols ? p.x.numel() / cols : 0;
  require_numel(op, rows * cols, {{"x", p.x}, {"out", p.out}});
  require_numel(op, cols, {{"beta", p.beta}});
  require_numel(op, rows, {{"mean", p.mean}, {"rstd", p.rstd}});
  if (p.delta) require_numel(op, rows * cols, {{"delta", p.delta}, {"sum", p.sum}});
  GT_CHECK(!p.drop || p.delta, op, ": dropout without a delta to act on");
  CpuContext& context = cpu_context(s);
  const int64_t grain = std::max<int64_t>(1, 8192 / std::max<int64_t>(1, cols));
  parallel_for(s, rows, grain, [&, &f = simd()](int64_t begin, int64_t end, int thread) {
    float* dropped = p.drop ? context.thread_scratch<float>(thread, 2 * cols) : nullptr;
    for (int64_t r = begin; r < end; ++r) {
      const int64_t at = r * cols;
      const float* delta = p.delta ? p.delta.as<float>() + at : nullptr;
      if (dropped != nullptr) {
        drop_row(f, p.drop, r, cols, delta, dropped + cols, dropped);
        delta = dropped;
      }
      f.layer_norm(p.x.as<float>() + at, delta, p.gamma.as<float>(), p.beta.as<float>(),
                   p.delta ? p.sum.as<float>() + at : nullptr, p.out.as<float>() + at, p.mean.as<float>() + r,
                   p.rstd.as<float>() + r, cols, p.eps);
    }
  });
}

void layer_norm_grad(const LayerNormGrad& p, Stream s) {
  const char* op = "layer_norm_grad";
  require_f32(op, {{"x", p.x},
                   {"gamma", p.gamma},
                   {"mean", p.mean},
                   {"rstd", p.rstd},
                   {"dout", p.dout},
                   {"dsum", p.dsum},
                   {"dx", p.dx},
                   {"dgamma", p.dgamma},
                   {"dbeta", p.dbeta},
                   {"ddelta", p.ddelta}});
  const int64_t cols = p.gamma.numel(), rows = cols ? p.x.numel() / cols : 0;
  require_numel(op, rows * cols, {{"x", p.x}, {"dout", p.dout}});
  require_numel(op, rows, {{"mean", p.mean}, {"rstd", p.rstd}});
  if (p.dx) require_numel(op, rows * cols, {{"dx", p.dx}});
  if (p.dsum) require_numel(op, rows * cols, {{"dsum", p.dsum}});
  if (p.drop) require_numel(op, rows * cols, {{"ddelta", p.ddelta}});
  GT_CHECK(!p.drop || (p.dx && !p.accumulate_dx), op, ": with dropout dx is written, not accumulated");
  for (const Tensor* t : {&p.dgamma, &p.dbeta}) {
    if (*t) require_numel(op, cols, {{"dgamma or dbeta", *t}});
  }
  const int64_t blocks = (rows + kRowBlock - 1) / kRowBlock;
  const int64_t stride = (cols + 15) / 16 * 16;  // partials: [dgamma, dbeta][block][stride]
  CpuContext& context = cpu_context(s);
  float* partial = context.scratch<float>(2 * blocks * stride);
  const Simd& f = simd();
  parallel_for(s, rows, kRowBlock, [&](int64_t begin, int64_t end, int thread) {  // begin: a multiple of kRowBlock
    float* factors = p.drop ? context.thread_scratch<float>(thread, cols) : nullptr;
    // Without dx every row writes it over the same bytes, from whatever gamma: the other gradients keep their bits.
    float* nowhere = p.dx ? nullptr : context.thread_scratch<float>(thread, cols);
    for (int64_t r = begin; r < end; ++r) {
      const int64_t at = r * cols, block = r / kRowBlock;
      float* dgamma = p.dgamma ? partial + block * stride : nullptr;
      float* dbeta = p.dbeta ? partial + (blocks + block) * stride : nullptr;
      const float* x = p.x.as<float>() + at;
      f.layer_norm_grad(x, p.dx ? p.gamma.as<float>() : x, p.mean.as<float>()[r], p.rstd.as<float>()[r],
                        p.dout.as<float>() + at, p.dsum ? p.dsum.as<float>() + at : nullptr,
                        p.dx ? p.dx.as<float>() + at : nowhere, dgamma, dbeta, cols, p.dx && p.accumulate_dx,
                        r % kRowBlock == 0);
      if (factors != nullptr)
        drop_row(f, p.drop, r, cols, p.dx.as<float>() + at, factors, p.ddelta.as<float>() + at);
    }
  });
  parallel_for(s, cols, 256, [&](int64_t begin, int64_t end, int) {
    if (p.dgamma) {
      f.sum_rows(partial + begin, stride, blocks, p.dgamma.as<float>() + begin, end - begin, p.accumulate_dw);
    }
    if (p.dbeta) {
      f.sum_rows(partial + blocks * stride + begin, stride, blocks, p.dbeta.as<float>() + begin, end - begin,
                 p.accumulate_dw);
    }
  });
}

}  // namespace gt::cpu
