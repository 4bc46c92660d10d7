// RMSNorm over all queries of a row, and over all its keys, on the CPU. Parallel over rows; weight gradients are summed
// per block of rows, and the blocks are added in order.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/check_args.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/cast_16bit.h"
#include "kernels/cpu/simd/simd.h"

namespace gt::cpu {
namespace {

int64_t grain(int64_t cols) { return std::max<int64_t>(1, 8192 / std::max<int64_t>(1, cols)); }

// Columns [begin, end) of a row that are normalized together: those of queries, then those of keys.
struct Section {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};
template <class Args>
Section section(const Args& p, int which) {
  const int64_t q = p.heads * p.head_dim;
  return which == 0 ? Section{0, q} : Section{q, q + p.kv_heads * p.head_dim};
}
template <class Args>
int64_t normed(const Args& p) {
  return (p.heads + p.kv_heads) * p.head_dim;
}

template <class Args>
void validate(const char* op, const Args& p) {
  const int64_t n = p.qkv.shape.rows();
  require_same_or_f32(op, {"qkv", p.qkv}, {{"gamma", p.gamma}});
  require_f32(op, {{"sums", p.sums}});
  GT_CHECK(p.heads > 0 && p.kv_heads > 0 && p.qkv.shape.cols() == normed(p) + p.kv_heads * p.head_dim, op, ": qkv ",
           to_string(p.qkv.shape), " of ", p.heads, " + 2 * ", p.kv_heads, " heads of ", p.head_dim);
  if (p.gamma) require_numel(op, normed(p), {{"gamma", p.gamma}});
  require_numel(op, 2 * n, {{"sums", p.sums}});
}

// 1 / number of elements in a section's sums.
template <class Args>
float share(const Args& p, int which) {
  return 1 / static_cast<float>(p.ranks * section(p, which).size());
}
template <class Args>
float rstd_of(const Args& p, int64_t row, int which) {
  return 1 / std::sqrt(p.sums.template as<float>()[2 * row + which] * share(p, which) + p.eps);
}

template <class Args>
void copy_values(const Args& p, const Tensor& from, const Tensor& to, int64_t row) {
  if (from.data == to.data) return;
  const int64_t size = size_of(from.dtype), at = (row * p.qkv.shape.cols() + normed(p)) * size;
  std::memcpy(to.data + at, from.data + at, static_cast<size_t>(p.kv_heads * p.head_dim * size));
}

}  // namespace

void qk_row_sums(const QkRowSums& p, Stream s) {
  constexpr const char* kOp = "qk_row_sums";
  validate(kOp, p);
  if (p.dout) {
    require_same(kOp, {"qkv", p.qkv}, {{"dout", p.dout}});
    require_numel(kOp, p.qkv.numel(), {{"dout", p.dout}});
    GT_CHECK(static_cast<bool>(p.gamma), kOp, ": dout without gamma");
  }
  const int64_t cols = p.qkv.shape.cols(), width = normed(p);
  CpuContext& context = cpu_context(s);
  parallel_for(s, p.qkv.shape.rows(), grain(cols), [&, &f = simd()](int64_t begin, int64_t end, int thread) {
    float* scratch = context.thread_scratch<float>(thread, 3 * width);
    const float* gamma = p.dout ? read(f, p.gamma, 0, width, scratch + 2 * width) : nullptr;
    for (int64_t r = begin; r < end; ++r) {
      const float* x = read(f, p.qkv, r * cols, width, scratch);
      if (p.dout) {
        f.multiply(read(f, p.dout, r * cols, width, scratch + width), gamma, scratch + width, width);
        f.multiply(scratch + width, x, scratch + width, width);
      }
      for (const int which : {0, 1}) {
        const Section at = section(p, which);
        p.sums.as<float>()[2 * r + which] = static_cast<float>(p.dout ? f.sum(scratch + width + at.begin, at.size())
                                                                      : f.sum_squares(x + at.begin, at.size()));
      }
    }
  });
}

void qk_row_norm(const QkRowNorm& p, Stream s) {
  constexpr const char* kOp = "qk_row_norm";
  validate(kOp, p);
  require_same(kOp, {"qkv", p.qkv}, {{"out", p.out}});
  require_numel(kOp, p.qkv.numel(), {{"out", p.out}});
  GT_CHECK(p.ranks > 0, kOp, ": ranks ", p.ranks);
  const int64_t cols = p.qkv.shape.cols(), width = normed(p);
  CpuContext& context = cpu_context(s);
  parallel_for(s, p.qkv.shape.rows(), grain(cols), [&, &f = simd()](int64_t begin, int64_t end, int thread) {
    float* scratch = context.thread_scratch<float>(thread, 3 * width);
    const float* gamma = read(f, p.gamma, 0, width, scratch + 2 * width);
    for (int64_t r = begin; r < end; ++r) {
      const float* x = read(f, p.qkv, r * cols, width, scratch);
      float* out = target(p.out, r * cols, scratch + width);
      for (const int which : {0, 1}) {
        const Section at = section(p, which);
        f.scale(x + at.begin, rstd_of(p, r, which), out + at.begin, at.size());
      }
      f.multiply(out, gamma, out, width);
      write(f, p.out, r * cols, width, out);
      copy_values(p, p.qkv, p.out, r);
    }
  });
}

namespace {

// Computes rows [begin, end) of the gradient; sums: weight gradients of this block, or nullptr. scratch: 4 rows.
void grad_rows(const QkRowNormGrad& p, const Simd& f, int64_t begin, int64_t end, float* scratch, float* sums) {
  const int64_t cols = p.qkv.shape.cols(), width = normed(p);
  float *x_scratch = scratch, *dout_scratch = scratch + width, *made = scratch + 2 * width;
  const float* gamma = p.dqkv ? read(f, p.gamma, 0, width, scratch + 3 * width) : nullptr;
  if (sums != nullptr) std::fill(sums, sums + width, 0.f);
  for (int64_t r = begin; r < end; ++r) {
    const float *x = read(f, p.qkv, r * cols, width, x_scratch), *dout = read(f, p.dout, r * cols, width, dout_scratch);
    if (sums != nullptr) f.multiply(dout, x, made, width);
    for (const int which : {0, 1}) {
      const Section at = section(p, which);
      if (sums != nullptr) f.axpy(rstd_of(p, r, which), made + at.begin, sums + at.begin, at.size());
    }
    if (!p.dqkv) continue;
    float* dx = target(p.dqkv, r * cols, made);
    f.multiply(dout, gamma, dx, width);
    for (const int which : {0, 1}) {
      const Section at = section(p, which);
      const float rstd = rstd_of(p, r, which), mean = p.dsums.as<float>()[2 * r + which] * share(p, which);
      f.axpy(-rstd * rstd * mean, x + at.begin, dx + at.begin, at.size());
      f.scale(dx + at.begin, rstd, dx + at.begin, at.size());
    }
    write(f, p.dqkv, r * cols, width, dx);
    copy_values(p, p.dout, p.dqkv, r);
  }
}

}  // namespace

void qk_row_norm_grad(const QkRowNormGrad& p, Stream s) {
  constexpr const char* kOp = "qk_row_norm_grad";
  validate(kOp, p);
  require_same(kOp, {"qkv", p.qkv}, {{"dout", p.dout}, {"dqkv", p.dqkv}});
  require_gradient(kOp, {{"dgamma", p.dgamma}});
  require_f32(kOp, {{"dsums", p.dsums}});
  require_numel(kOp, p.qkv.numel(), {{"dout", p.dout}});
  if (p.dqkv)
    require_numel(kOp, p.qkv.numel(), {{"dqkv", p.dqkv}}), require_numel(kOp, p.sums.numel(), {{"dsums", p.dsums}});
  if (p.dgamma) require_numel(kOp, normed(p), {{"dgamma", p.dgamma}});
  constexpr int64_t kRowBlock = kSumBlock;  // rows summed as one block; affects rounding
  const int64_t rows = p.qkv.shape.rows(), width = normed(p), blocks = (rows + kRowBlock - 1) / kRowBlock;
  CpuContext& context = cpu_context(s);
  float* sums = p.dgamma ? context.scratch<float>(blocks * width) : nullptr;
  const Simd& f = simd();
  parallel_for(s, blocks, std::max<int64_t>(1, grain(p.qkv.shape.cols()) / kRowBlock),
               [&](int64_t begin, int64_t end, int thread) {
                 float* scratch = context.thread_scratch<float>(thread, 4 * width);
                 for (int64_t b = begin; b < end; ++b)
                   grad_rows(p, f, b * kRowBlock, std::min(rows, (b + 1) * kRowBlock), scratch,
                             sums != nullptr ? sums + b * width : nullptr);
               });
  if (sums == nullptr) return;
  edit(f, p.dgamma, 0, width, p.accumulate_dw,
       [&](float* all, int64_t c, int64_t n) { f.column_sums(sums + c, width, blocks, all, n, p.accumulate_dw); });
}

}  // namespace gt::cpu
