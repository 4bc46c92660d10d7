// Per-head ops on packed queries, keys and values before attention, on the CPU: rotary embedding and QK norm. Rows in
// parallel; gradients of the norm's weights by blocks of rows, added in order.
#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cpu/check_args.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/cast_16bit.h"
#include "kernels/cpu/simd/simd.h"

namespace gt::cpu {
namespace {

int64_t grain(int64_t cols) { return std::max<int64_t>(1, 8192 / std::max<int64_t>(1, cols)); }

void validate(const Rope& p) {
  constexpr const char* kOp = "rope";
  const int64_t n = p.x.shape.rows(), cols = p.x.shape.cols(), dim = p.table.shape.cols();
  require_float(kOp, {"x", p.x});
  require_f32(kOp, {{"table", p.table}});
  require_dtype(kOp, DType::kI32, {{"positions", p.positions}});
  GT_CHECK(p.heads > 0 && p.heads * p.head_dim <= cols && dim % 2 == 0 && dim <= p.head_dim && p.rows.seq > 0, kOp,
           ": x ", to_string(p.x.shape), ", heads ", p.heads, " of ", p.head_dim, ", table ", to_string(p.table.shape),
           ", seq ", p.rows.seq);
  const int64_t known = p.table.shape.rows();
  if (!p.positions) {
    GT_CHECK(p.rows.first >= 0 && p.rows.end(n) <= known, kOp, ": positions from ", p.rows.first,
             " on of sequences of ", p.rows.seq, " in a table of ", known);
    return;
  }
  require_numel(kOp, n, {{"positions", p.positions}});
  for (int64_t r = 0; r < n; ++r) {
    const int32_t at = p.positions.as<int32_t>()[r];
    GT_CHECK(at >= 0 && at < known, kOp, ": position ", at, " in a table of ", known);
  }
}

}  // namespace

void rope(const Rope& p, Stream s) {
  validate(p);
  const int64_t cols = p.x.shape.cols(), dim = p.table.shape.cols(), half = dim / 2;
  CpuContext& context = cpu_context(s);
  parallel_for(s, p.x.shape.rows(), grain(p.heads * dim), [&, &f = simd()](int64_t begin, int64_t end, int thread) {
    float* scratch = context.thread_scratch<float>(thread, dim);
    for (int64_t r = begin; r < end; ++r) {
      const float* cos = p.table.as<float>() + p.rows.position(r, p.positions.as<int32_t>()) * dim;
      for (int64_t h = 0; h < p.heads; ++h) {
        const int64_t at = r * cols + h * p.head_dim;
        auto* x = const_cast<float*>(read(f, p.x, at, dim, scratch));
        f.rotate(cos, cos + half, x, x + half, half, p.backward);
        write(f, p.x, at, dim, x);
      }
    }
  });
}

namespace {

template <class Args>
void validate(const char* op, const Args& p) {
  const int64_t n = p.qkv.shape.rows(), width = (p.heads + 2 * p.kv_heads) * p.head_dim;
  require_same_or_f32(op, {"qkv", p.qkv}, {{"q_gamma", p.q_gamma}, {"k_gamma", p.k_gamma}});
  require_f32(op, {{"rstd", p.rstd}});
  GT_CHECK(p.heads > 0 && p.kv_heads > 0 && p.qkv.shape.cols() == width, op, ": qkv ", to_string(p.qkv.shape), " of ",
           p.heads, " + 2 * ", p.kv_heads, " heads of ", p.head_dim);
  require_numel(op, p.head_dim, {{"q_gamma", p.q_gamma}, {"k_gamma", p.k_gamma}});
  require_numel(op, n * (p.heads + p.kv_heads), {{"rstd", p.rstd}});
}

// Norm weights of queries and keys, in f32 and with their offset, into `scratch` of 2 head_dim.
template <class Args>
void weights(const Simd& f, const Args& p, float* scratch) {
  f.add_scalar(read(f, p.q_gamma, 0, p.head_dim, scratch), p.gamma_offset, scratch, p.head_dim);
  float* k = scratch + p.head_dim;
  f.add_scalar(read(f, p.k_gamma, 0, p.head_dim, k), p.gamma_offset, k, p.head_dim);
}

// Copies v of row r.
template <class Args>
void copy_values(const Args& p, const Tensor& from, const Tensor& to, int64_t r) {
  if (from.data == to.data) return;
  const int64_t size = size_of(from.dtype), count = p.kv_heads * p.head_dim * size;
  const int64_t at = (r * (p.heads + 2 * p.kv_heads) + p.heads + p.kv_heads) * p.head_dim * size;
  std::memcpy(to.data + at, from.data + at, static_cast<size_t>(count));
}

}  // namespace

void qk_norm(const QkNorm& p, Stream s) {
  validate("qk_norm", p);
  require_same("qk_norm", {"qkv", p.qkv}, {{"out", p.out}});
  require_numel("qk_norm", p.qkv.numel(), {{"out", p.out}});
  const int64_t cols = p.qkv.shape.cols(), dim = p.head_dim, normed = p.heads + p.kv_heads;
  CpuContext& context = cpu_context(s);
  parallel_for(s, p.qkv.shape.rows(), grain(cols), [&, &f = simd()](int64_t begin, int64_t end, int thread) {
    float* scratch = context.thread_scratch<float>(thread, 4 * dim);
    weights(f, p, scratch);
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t h = 0; h < normed; ++h) {
        const int64_t at = r * cols + h * dim;
        float* out = target(p.out, at, scratch + 3 * dim);
        f.rms_norm(read(f, p.qkv, at, dim, scratch + 2 * dim), nullptr, h < p.heads ? scratch : scratch + dim, nullptr,
                   nullptr, out, nullptr, p.rstd.as<float>() + r * normed + h, dim, p.eps);
        write(f, p.out, at, dim, out);
      }
      copy_values(p, p.qkv, p.out, r);
    }
  });
}

namespace {

// Gradient over rows [begin, end). sums: partial dq_gamma, then dk_gamma of this block; nullptr: not computed.
void qk_norm_grad_rows(const QkNormGrad& p, const Simd& f, int64_t begin, int64_t end, float* scratch, float* sums) {
  const int64_t cols = p.qkv.shape.cols(), dim = p.head_dim, normed = p.heads + p.kv_heads;
  float *gammas = scratch, *x_scratch = scratch + 2 * dim, *dout_scratch = x_scratch + dim,
        *dx_scratch = dout_scratch + dim;
  if (p.dqkv) weights(f, p, gammas);
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t h = 0; h < normed; ++h) {
      const int64_t at = r * cols + h * dim, which = h < p.heads ? 0 : dim;
      const float* x = read(f, p.qkv, at, dim, x_scratch);
      float* dx = p.dqkv ? target(p.dqkv, at, dx_scratch) : dx_scratch;
      f.rms_norm_grad(x, p.dqkv ? gammas + which : x, 0, p.rstd.as<float>()[r * normed + h],
                      read(f, p.dout, at, dim, dout_scratch), nullptr, dx, sums != nullptr ? sums + which : nullptr,
                      nullptr, dim, false, r == begin && (h == 0 || h == p.heads));
      if (p.dqkv) write(f, p.dqkv, at, dim, dx);
    }
    if (p.dqkv) copy_values(p, p.dout, p.dqkv, r);
  }
}

}  // namespace

void qk_norm_grad(const QkNormGrad& p, Stream s) {
  constexpr const char* kOp = "qk_norm_grad";
  validate(kOp, p);
  require_same(kOp, {"qkv", p.qkv}, {{"dout", p.dout}, {"dqkv", p.dqkv}});
  require_gradient(kOp, {{"dq_gamma", p.dq_gamma}, {"dk_gamma", p.dk_gamma}});
  require_numel(kOp, p.qkv.numel(), {{"dout", p.dout}});
  if (p.dqkv) require_numel(kOp, p.qkv.numel(), {{"dqkv", p.dqkv}});
  GT_CHECK(static_cast<bool>(p.dq_gamma) == static_cast<bool>(p.dk_gamma), kOp, ": dq_gamma and dk_gamma go together");
  if (p.dq_gamma) require_numel(kOp, p.head_dim, {{"dq_gamma", p.dq_gamma}, {"dk_gamma", p.dk_gamma}});
  constexpr int64_t kRowBlock = kSumBlock;  // rows summed together; affects the bits of the result
  const int64_t rows = p.qkv.shape.rows(), dim = p.head_dim, blocks = (rows + kRowBlock - 1) / kRowBlock;
  CpuContext& context = cpu_context(s);
  float* sums = p.dq_gamma ? context.scratch<float>(blocks * 2 * dim) : nullptr;
  const Simd& f = simd();
  parallel_for(s, blocks, std::max<int64_t>(1, grain(p.qkv.shape.cols()) / kRowBlock),
               [&](int64_t begin, int64_t end, int thread) {
                 float* scratch = context.thread_scratch<float>(thread, 5 * dim);
                 for (int64_t b = begin; b < end; ++b)
                   qk_norm_grad_rows(p, f, b * kRowBlock, std::min(rows, (b + 1) * kRowBlock), scratch,
                                     sums != nullptr ? sums + b * 2 * dim : nullptr);
               });
  if (sums == nullptr) return;
  for (const auto& [to, first] : {std::pair{p.dq_gamma, int64_t{0}}, {p.dk_gamma, dim}})
    edit(f, to, 0, dim, p.accumulate_dw, [&, columns = sums + first](float* all, int64_t c, int64_t n) {
      f.column_sums(columns + c, 2 * dim, blocks, all, n, p.accumulate_dw);
    });
}

}  // namespace gt::cpu
