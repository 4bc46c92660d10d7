// Residual add + layer norm or RMSNorm, and its backward, in one pass each. A row stays in registers: one warp per row
// up to 2048 columns, eight warps up to 8192. Other sizes use generic kernels that read a row several times.
// Layer norm: Ba, Kiros, Hinton 2016, arXiv 1607.06450.
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/norm/norm.cuh"
#include "kernels/cuda/norm/norm_grad.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vec.cuh"

namespace gt::cuda {

namespace {

// W warps per row, K packs of V elements per lane. Drop: dropout of delta.
template <class T, int V, int K, int W, bool Drop>
__global__ void __launch_bounds__(W == 1 ? 128 : 32 * W, W == 1 && K == 4 ? 6 : 1) norm_kernel(Forward<T> p) {
  __shared__ float shared[W];
  const int lane = W == 1 ? threadIdx.x % 32 : threadIdx.x;
  const int64_t row = W == 1 ? int64_t{blockIdx.x} * 4 + threadIdx.x / 32 : blockIdx.x;
  if (row >= p.n) return;  // whole warps exit; with W > 1 the grid is exact
  norm_row<V, K, W, Drop>(p, row, lane, shared,
                          [&](int c, const float(&v)[V]) { store<V>(p.out + row * p.cols + c, v); });
}

// Any row length: one block per row, three passes.
template <class T, bool Drop>
__global__ void __launch_bounds__(256) norm_any_kernel(Forward<T> p) {
  __shared__ float shared[8];
  const int64_t row = blockIdx.x, at = row * p.cols;
  float s = 0;
  for (int c = threadIdx.x; c < p.cols; c += 256) {
    float v = to_float(p.x[at + c]);
    if (p.delta) {
      float d[1];
      p.delta.template get<1>(at + c, d);
      if constexpr (Drop) drop<1>(p.drop, row, p.cols, c, d);
      v = rounded<T>(v + d[0]);
      p.sum[at + c] = from_float<T>(v);
    }
    s += v;
  }
  const T* x = p.delta ? p.sum : p.x;  // each thread reads back only its own writes
  const float mean = p.template mean_of<8>(s, shared);
  float q = 0;
  for (int c = threadIdx.x; c < p.cols; c += 256) {
    const float d = to_float(x[at + c]) - mean;
    q += d * d;
  }
  const float rstd = inverse_root(group_sum<8>(q, shared) * p.inverse_cols + p.eps);
  for (int c = threadIdx.x; c < p.cols; c += 256) {
    float v[1] = {to_float(x[at + c])};
    p.scale(c, mean, rstd, v);
    p.out[at + c] = from_float<T>(v[0]);
  }
  if (threadIdx.x == 0) p.statistics(row, mean, rstd);
}

// Blocks iterate over rows, accumulating dgamma and dbeta in registers and dbias in shared memory: registers for dbias
// would cost occupancy.
template <class T, int V, int K, int W, bool Drop>
__global__ void __launch_bounds__(W == 1 ? 128 : 32 * W, kResidentBlocks<V, K, W, Drop>)
    norm_grad_kernel(Backward<T> p) {
  __shared__ float shared[2 * W];
  extern __shared__ float4 memory[];  // dbias partial sums, if dbias is requested
  auto* bias_shares = reinterpret_cast<float*>(memory);
  const int lane = W == 1 ? threadIdx.x % 32 : threadIdx.x;
  const int64_t first = W == 1 ? int64_t{blockIdx.x} * 4 + threadIdx.x / 32 : blockIdx.x;
  const int64_t step = int64_t{gridDim.x} * (W == 1 ? 4 : 1);
  float dgamma[K][V] = {}, dbeta[K][V] = {};
  float* dbias = bias_share<V, K, W>(p, bias_shares, lane);
  for (int64_t row = first; row < p.n; row += step)
    norm_grad_row<V, K, W, Drop>(p, row, lane, shared, dgamma, dbeta, [&](int k, int, float(&v)[V]) {
      if (p.bias_partial == nullptr) return;
      p.ddelta.round(v);
      add_bias_share<V, W>(v, k, dbias);
    });
  if (p.bias_partial != nullptr) put_bias_share<V, K, W>(p, bias_shares);
  put_weight_shares<V, K, W>(p, dgamma, dbeta, lane);
}

template <class T, bool Drop>
__global__ void __launch_bounds__(256) norm_grad_any_kernel(Backward<T> p) {
  __shared__ float shared[2 * 8];
  const int64_t row = blockIdx.x, at = row * p.cols;
  const float mean = p.mean_of(row), rstd = p.rstd[row];
  float s = 0, sx = 0, w[1];
  for (int c = threadIdx.x; c < p.cols; c += 256) {
    p.weights_at(c, w);
    const float g = to_float(p.dout[at + c]) * w[0];
    s += g;
    sx += g * (to_float(p.x[at + c]) - mean) * rstd;
  }
  const float2 sums = group_sum<8>(make_float2(s, sx), shared);
  s = p.rms ? 0.0f : sums.x * p.inverse_cols;
  sx = sums.y * p.inverse_cols;
  for (int c = threadIdx.x; c < p.cols; c += 256) {
    p.weights_at(c, w);
    float d = rstd * (to_float(p.dout[at + c]) * w[0] - s - (to_float(p.x[at + c]) - mean) * rstd * sx);
    if (p.dsum != nullptr) d += to_float(p.dsum[at + c]);
    if (p.accumulate) d += to_float(p.dx[at + c]);
    p.dx[at + c] = from_float<T>(d);
    if constexpr (Drop) {
      float v[1] = {rounded<T>(d)};
      drop<1>(p.drop, row, p.cols, c, v);
      p.ddelta.template put<1>(at + c, v);
    }
  }
}

// dgamma and dbeta of one chunk of rows, any row length; one thread per column.
template <class T>
__global__ void __launch_bounds__(256) norm_weights_any_kernel(Backward<T> p, int64_t chunk) {
  const int c = blockIdx.x * 256 + threadIdx.x;
  if (c >= p.cols) return;
  const int64_t end = min(p.n, (int64_t{blockIdx.y} + 1) * chunk);
  float dgamma = 0, dbeta = 0;
#pragma unroll 4
  for (int64_t row = int64_t{blockIdx.y} * chunk; row < end; ++row) {
    const float d = to_float(p.dout[row * p.cols + c]);
    dgamma += d * (to_float(p.x[row * p.cols + c]) - p.mean_of(row)) * p.rstd[row];
    dbeta += d;
  }
  p.partial[int64_t{blockIdx.y} * 2 * p.cols + c] = dgamma;
  p.partial[int64_t{blockIdx.y} * 2 * p.cols + p.cols + c] = dbeta;
}

}  // namespace

namespace {

void validate(const LayerNorm& a, int64_t n, int64_t cols) {
  constexpr const char* kOp = "layer_norm";
  const int64_t all = a.x.numel();
  const Fp8Out& fp8 = a.fp8;
  GT_CHECK(a.gamma.numel() == cols && a.rstd.numel() == n, kOp, ": x ", to_string(a.x.shape), " gamma ",
           to_string(a.gamma.shape), " rstd ", to_string(a.rstd.shape));
  GT_CHECK(a.kind == NormKind::kRms ? !a.beta && !a.mean : a.beta.numel() == cols, kOp, ": beta ",
           to_string(a.beta.shape), ", mean ", to_string(a.mean.shape));
  GT_CHECK(a.out || fp8.quantizes(), kOp, ": no output requested (out or FP8 data)");
  GT_CHECK((!a.out || a.out.numel() == all) && (!fp8.rowwise || fp8.rowwise.numel() == all) &&
               (!fp8.columnwise || fp8.columnwise.numel() == all),
           kOp, ": x ", to_string(a.x.shape), " out ", to_string(a.out.shape), " rows ", to_string(fp8.rowwise.shape),
           " columns ", to_string(fp8.columnwise.shape));
  if (a.out) require_dtype(kOp, "out", a.out, a.x.dtype);
  if (a.delta) require_dtype(kOp, "sum", a.sum, a.x.dtype);
  if (fp8.rowwise) require_dtype(kOp, "rowwise", fp8.rowwise, DType::kF8E4M3);
  if (fp8.columnwise) require_dtype(kOp, "columnwise", fp8.columnwise, DType::kF8E4M3);
  GT_CHECK(!a.drop || a.delta, kOp, ": dropout without a delta to act on");
}

void plain_norm(const LayerNorm& a, Context& c) {
  const int64_t cols = a.x.shape.cols(), n = a.x.shape.rows();
  by_dtype("layer_norm", "x", a.x.dtype, [&](auto t) {
    using T = decltype(t);
    const Forward<T> p = forward_of<T>(a);
    by_drop(a.drop, [&](auto drops) {
      constexpr bool kDrops = decltype(drops)::value;
      const bool fits =
          aligned16({a.x.data, a.delta.data, a.gamma.data, a.beta.data, a.sum.data, a.out.data}) &&
          by_row_shape<T, kForward, true>(cols, [&](auto shape) {
            constexpr int kK = decltype(shape)::k, kW = decltype(shape)::w;
            norm_kernel<T, kPack<T>, kK, kW, kDrops>
                <<<static_cast<unsigned>(kW == 1 ? ceil_div(n, 4) : n), kW == 1 ? 128 : 32 * kW, 0, c.stream>>>(p);
          });
      if (!fits) norm_any_kernel<T, kDrops><<<static_cast<unsigned>(n), 256, 0, c.stream>>>(p);
    });
  });
}

}  // namespace

void layer_norm(const LayerNorm& a, Stream s) {
  if (a.x.numel() == 0) return;
  Context& c = enter(s, "layer_norm");
  validate(a, a.x.shape.rows(), a.x.shape.cols());
  if (a.fp8 && norm_fp8(a, c)) return leave(c, "layer_norm");
  LayerNorm plain = a;
  if (!a.out) plain.out = {c.scratch(a.x.bytes()), a.x.shape, a.x.dtype, a.x.device};
  plain_norm(plain, c);
  leave(c, "layer_norm");
  if (a.fp8) quantize_fp8({.x = plain.out, .fp8 = a.fp8}, s);
}

namespace {

void validate(const LayerNormGrad& a, int64_t n, int64_t cols) {
  constexpr const char* kOp = "layer_norm_grad";
  const int64_t all = a.x.numel();
  const Fp8Out& fp8 = a.fp8;
  GT_CHECK(n * cols == all && a.dout.numel() == all && (!a.dx || a.dx.numel() == all) && a.rstd.numel() == n, kOp,
           ": x ", to_string(a.x.shape), " dout ", to_string(a.dout.shape), " gamma ", to_string(a.gamma.shape));
  GT_CHECK(a.kind == NormKind::kRms ? !a.dbeta : static_cast<bool>(a.dgamma) == static_cast<bool>(a.dbeta), kOp,
           ": dgamma and dbeta go together, and RMSNorm has no beta");
  require_dtype(kOp, "dout", a.dout, a.x.dtype);
  if (a.dx) require_dtype(kOp, "dx", a.dx, a.x.dtype);
  if (a.dsum) require_dtype(kOp, "dsum", a.dsum, a.x.dtype);
  GT_CHECK(!a.drop || (a.ddelta.numel() == a.dx.numel() && !a.accumulate_dx), kOp, ": ddelta ",
           to_string(a.ddelta.shape), " for dx ", to_string(a.dx.shape), " that is not accumulated");
  if (a.dbeta) require_dtype(kOp, "dbeta", a.dbeta, a.dgamma.dtype);
  GT_CHECK(!a.dbias || (a.dx && a.dbias.numel() == cols), kOp, ": dbias ", to_string(a.dbias.shape), " of dx ",
           to_string(a.dx.shape));
  GT_CHECK((!fp8.rowwise || fp8.rowwise.numel() == all) && (!fp8.columnwise || fp8.columnwise.numel() == all) &&
               (a.dx || !fp8),
           kOp, ": dx ", to_string(a.dx.shape), " rows ", to_string(fp8.rowwise.shape), " columns ",
           to_string(fp8.columnwise.shape));
  for (const Tensor* codes : {&fp8.rowwise, &fp8.columnwise})
    if (*codes) require_dtype(kOp, "codes", *codes, DType::kF8E5M2);
  if (fp8.quantizes()) {
    require_dtype(kOp, "amax", fp8.amax, DType::kF32);
    require_dtype(kOp, "scale_inv", fp8.scale_inv, DType::kF32);
  }
  if (fp8.step_amax) require_dtype(kOp, "step_amax", fp8.step_amax, DType::kF32);
}

// One-pass kernels with the row in registers. Returns false when none supports this shape, dtype or alignment.
template <class T>
bool in_registers(const LayerNormGrad& a, const Backward<T>& p, Context& c, PartialSums& shares, bool* quantized) {
  // Weight gradients alone (a deferred pass) use the column kernel: a run-time test for dx here would spill registers.
  if (!a.dx || !aligned16({a.x.data, a.gamma.data, a.dout.data, a.dsum.data, a.dx.data, a.ddelta.data})) return false;
  if constexpr (!std::is_same_v<T, float>)  // FP8 training has 16-bit activations
    if (a.fp8 && norm_grad_fp8(a, p, c, shares)) return *quantized = true;
  bool fits = false;
  by_drop(a.drop, [&](auto drops) {
    fits = by_row_shape<T, kBackward>(p.cols, [&](auto shape) {
      constexpr int kK = decltype(shape)::k, kW = decltype(shape)::w;
      Backward<T> q = p;
      constexpr int kHolds = kResidentBlocks<kPack<T>, kK, kW, decltype(drops)::value>;
      shares.divide(a, std::min<int64_t>(kW == 1 ? ceil_div(p.n, 4) : p.n, kMultiprocessors * kHolds), q, c);
      const size_t bytes = a.dbias ? kBiasShareBytes<kPack<T>, kK, kW> : 0;
      norm_grad_kernel<T, kPack<T>, kK, kW, decltype(drops)::value>
          <<<static_cast<unsigned>(shares.parts), kW == 1 ? 128 : 32 * kW, bytes, c.stream>>>(q);
    });
  });
  return fits;
}

// Any row length, any alignment. Weights first: dx and ddelta may alias the inputs.
template <class T>
void in_passes(const LayerNormGrad& a, Backward<T> p, Context& c, PartialSums& shares) {
  const int64_t chunk = std::max<int64_t>(16, ceil_div(p.n, 256));
  shares.divide(a, ceil_div(p.n, chunk), p, c);
  const dim3 grid(static_cast<unsigned>(ceil_div(p.cols, 256)), static_cast<unsigned>(shares.parts));
  if (a.dgamma) norm_weights_any_kernel<T><<<grid, 256, 0, c.stream>>>(p, chunk);
  if (!a.dx) return;
  by_drop(a.drop, [&](auto drops) {
    norm_grad_any_kernel<T, decltype(drops)::value><<<static_cast<unsigned>(p.n), 256, 0, c.stream>>>(p);
  });
}

}  // namespace

void layer_norm_grad(const LayerNormGrad& a, Stream s) {
  constexpr const char* kOp = "layer_norm_grad";
  const int64_t cols = a.gamma.numel();
  if (cols == 0) return;
  const int64_t n = a.x.numel() / cols;
  Context& c = enter(s, kOp);
  validate(a, n, cols);
  if (n == 0 && !a.dgamma && !a.dbias && !a.fp8) return;
  PartialSums shares;
  bool fits = false, quantized = false;
  by_dtype(kOp, "x", a.x.dtype, [&](auto t) {
    using T = decltype(t);
    const Backward<T> p{a.x.as<T>(),
                        weights<T>(kOp, "gamma", a.gamma, a.x.dtype),
                        a.mean.as<float>(),
                        a.rstd.as<float>(),
                        a.dout.as<T>(),
                        a.dsum.as<T>(),
                        a.dx.as<T>(),
                        nullptr,
                        n,
                        static_cast<int>(cols),
                        1.0f / static_cast<float>(cols),
                        a.accumulate_dx,
                        branch<T>(kOp, "ddelta", a.ddelta, a.x.dtype),
                        a.drop,
                        nullptr,
                        a.kind == NormKind::kRms,
                        a.gamma_offset};
    if (n == 0) return;
    fits = in_registers(a, p, c, shares, &quantized);
    if (!fits) in_passes(a, p, c, shares);
  });
  const auto parts = static_cast<int>(shares.parts);
  if (a.dgamma) combine_partials(c, shares.partials, parts, 2 * cols, cols, a.dgamma, a.dbeta, a.accumulate_dw, kOp);
  if (a.dbias && fits)
    combine_partials(c, shares.partials + shares.parts * 2 * cols, parts, cols, cols, a.dbias, {}, a.accumulate_dbias,
                     kOp);
  leave(c, kOp);
  const Tensor branch = a.drop ? a.ddelta : a.dx;
  if (a.dbias && !fits) column_sums({.x = branch, .out = a.dbias, .accumulate = a.accumulate_dbias}, s);
  if (a.fp8 && !quantized) quantize_fp8({.x = branch, .fp8 = a.fp8}, s);
}

}  // namespace gt::cuda
