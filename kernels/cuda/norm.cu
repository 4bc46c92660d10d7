// Residual add + layer norm, and its backward, in one pass each. A row lives in registers: one warp a row up to 1024
// columns, eight warps up to 8192; other sizes take the plain kernels, which read a row several times.
// Layer norm: Ba, Kiros, Hinton 2016, arXiv 1607.06450.
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vec.cuh"

namespace gt::cuda {

namespace {

// W warps share a row, K packs of V elements a lane. Drop: dropout of delta.
template <class T, int V, int K, int W, bool Drop>
__global__ void __launch_bounds__(W == 1 ? 128 : 32 * W, W == 1 && K == 4 ? 6 : 1) norm_kernel(Forward<T> p) {
  __shared__ float shared[W];
  const int lane = W == 1 ? threadIdx.x % 32 : threadIdx.x;
  const int64_t row = W == 1 ? int64_t{blockIdx.x} * 4 + threadIdx.x / 32 : blockIdx.x;
  if (row >= p.n) return;  // whole warps leave; with W > 1 the grid is exact
  norm_row<V, K, W, Drop>(p, row, lane, shared,
                          [&](int c, const float(&v)[V]) { store<V>(p.out + row * p.cols + c, v); });
}

// Any row length: a block a row, three passes.
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
  const T* x = p.delta ? p.sum : p.x;  // a thread reads back only what it wrote itself
  const float mean = group_sum<8>(s, shared) * p.inverse_cols;
  float q = 0;
  for (int c = threadIdx.x; c < p.cols; c += 256) {
    const float d = to_float(x[at + c]) - mean;
    q += d * d;
  }
  const float rstd = inverse_root(group_sum<8>(q, shared) * p.inverse_cols + p.eps);
  for (int c = threadIdx.x; c < p.cols; c += 256) {
    float g[1], b[1];
    p.gamma.template get<1>(c, g);
    p.beta.template get<1>(c, b);
    p.out[at + c] = from_float<T>((to_float(x[at + c]) - mean) * rstd * g[0] + b[0]);
  }
  if (threadIdx.x == 0) p.statistics(row, mean, rstd);
}

template <class T>
struct Backward {
  const T* x;
  Weights<T> gamma;
  const float *mean, *rstd;
  const T *dout, *dsum;
  T* dx;           // nullptr: not wanted, gamma is not read
  float* partial;  // [blocks][2][cols]: dgamma, dbeta; nullptr: not wanted
  int64_t n;
  int cols;
  bool accumulate;
  Branch<T> ddelta;  // may be dout: a thread writes where it alone has read
  RowDrop drop;
  float* bias_partial;  // [blocks][cols]: dbias; nullptr: not wanted
};

// Sums of a block's rows out of shared memory; the four warps that walked apart are added in order.
template <int V, int K, int W, class T>
__device__ inline void put_bias_share(const Backward<T>& p, const float* shares) {
  __syncthreads();
  float* out = p.bias_partial + int64_t{blockIdx.x} * p.cols;
  for (int c = threadIdx.x; c < p.cols; c += blockDim.x) {
    const int pack = c / V, at = (pack / (32 * W) * V + c % V) * 32 * W + pack % (32 * W);
    float s = shares[at];
    if constexpr (W == 1)
      for (int w = 1; w < 4; ++w) s += shares[w * K * V * 32 + at];
    out[c] = s;
  }
}

// Blocks of norm_grad_kernel that a multiprocessor holds, by the registers of a lane's K packs of V elements; those of
// f32 wait in twice as many. resources.txt says whether they fit.
template <int V, int K, int W>
constexpr int kHeld = W == 1     ? 3
                      : W == 4   ? 8
                      : K* V > 8 ? 32 / (K * V)
                      : V == 4   ? 3
                                 : 4;

// Blocks walk over rows and keep their share of dgamma and dbeta in registers until the end, that of dbias in shared
// memory: registers for it would cost resident warps. An element's place there has its lane last: no two of a warp
// meet in a bank, and no thread reads what another wrote before the end.
template <class T, int V, int K, int W, bool Drop>
__global__ void __launch_bounds__(W == 1 ? 128 : 32 * W, kHeld<V, K, W>) norm_grad_kernel(Backward<T> p) {
  __shared__ float shared[W];
  extern __shared__ float4 memory[];  // f32 [warps that walk apart][K][V][lanes of a row], where dbias is wanted
  auto* bias_shares = reinterpret_cast<float*>(memory);
  const int lane = W == 1 ? threadIdx.x % 32 : threadIdx.x;
  const int64_t first = W == 1 ? int64_t{blockIdx.x} * 4 + threadIdx.x / 32 : blockIdx.x;
  const int64_t step = int64_t{gridDim.x} * (W == 1 ? 4 : 1);
  float dgamma[K][V] = {}, dbeta[K][V] = {};
  float* dbias = bias_shares + (W == 1 ? threadIdx.x / 32 * (K * V * 32) : 0) + lane;
  if (p.bias_partial != nullptr) {
#pragma unroll
    for (int i = 0; i < K * V; ++i) dbias[i * 32 * W] = 0;
  }
  for (int64_t row = first; row < p.n; row += step) {
    const int64_t at = row * p.cols;
    const float mean = p.mean[row], rstd = p.rstd[row];
    float x[K][V], g[K][V];
    // Asked for with the others, and before them, for the branch would wait for what they bring: behind the sums, each
    // pack would wait for memory once more, as dx may be where the next one lies.
    const T* addend = p.dsum != nullptr ? p.dsum : p.accumulate ? p.dx : nullptr;
    Stored<V, T> added[K];
    if (addend != nullptr) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        const int c = (k * 32 * W + lane) * V;
        if (c < p.cols) added[k].load(addend + at + c);
      }
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int c = (k * 32 * W + lane) * V;
      if (c >= p.cols) continue;
      load<V>(p.x + at + c, x[k]);
      load<V>(p.dout + at + c, g[k]);
    }
    float s = 0, sx = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int c = (k * 32 * W + lane) * V;
      if (c >= p.cols) continue;
      float w[V];
      p.gamma.template get<V>(c, w);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        x[k][j] = (x[k][j] - mean) * rstd;
        dgamma[k][j] += g[k][j] * x[k][j];
        dbeta[k][j] += g[k][j];
        g[k][j] *= w[j];
        s += g[k][j];
        sx += g[k][j] * x[k][j];
      }
    }
    s = group_sum<W>(s, shared) / static_cast<float>(p.cols);
    sx = group_sum<W>(sx, shared) / static_cast<float>(p.cols);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int c = (k * 32 * W + lane) * V;
      if (c >= p.cols) continue;
      float more[V];
#pragma unroll
      for (int j = 0; j < V; ++j) x[k][j] = rstd * (g[k][j] - s - x[k][j] * sx);
      if (addend != nullptr) {
        added[k].get(more);
#pragma unroll
        for (int j = 0; j < V; ++j) x[k][j] += more[j];
      }
      if (p.accumulate && p.dsum != nullptr) {
        load<V>(p.dx + at + c, more);
#pragma unroll
        for (int j = 0; j < V; ++j) x[k][j] += more[j];
      }
      store<V>(p.dx + at + c, x[k]);
      if constexpr (Drop) {
#pragma unroll
        for (int j = 0; j < V; ++j) x[k][j] = rounded<T>(x[k][j]);
        drop<V>(p.drop, row, p.cols, c, x[k]);
        p.ddelta.template put<V>(at + c, x[k]);
      }
      if (p.bias_partial == nullptr) continue;
      p.ddelta.round(x[k]);
#pragma unroll
      for (int j = 0; j < V; ++j) dbias[(k * V + j) * 32 * W] += x[k][j];
    }
  }
  if (p.bias_partial != nullptr) put_bias_share<V, K, W>(p, bias_shares);
  if (p.partial == nullptr) return;
  float* out = p.partial + int64_t{blockIdx.x} * 2 * p.cols;
  if constexpr (W > 1) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int c = (k * 32 * W + lane) * V;
      if (c >= p.cols) continue;
#pragma unroll
      for (int j = 0; j < V; ++j) {
        out[c + j] = dgamma[k][j];
        out[p.cols + c + j] = dbeta[k][j];
      }
    }
  } else {  // the four warps of the block hold four shares of the same columns: added in order
    __shared__ float share[4][2][32 * V];
#pragma unroll
    for (int k = 0; k < K; ++k) {
#pragma unroll
      for (int j = 0; j < V; ++j) {
        share[threadIdx.x / 32][0][lane * V + j] = dgamma[k][j];
        share[threadIdx.x / 32][1][lane * V + j] = dbeta[k][j];
      }
      __syncthreads();
      for (int t = threadIdx.x; t < 2 * 32 * V; t += 128) {
        const int which = t / (32 * V), i = t % (32 * V), c = k * 32 * V + i;
        if (c < p.cols)
          out[which * p.cols + c] =
              ((share[0][which][i] + share[1][which][i]) + share[2][which][i]) + share[3][which][i];
      }
      __syncthreads();
    }
  }
}

template <class T, bool Drop>
__global__ void __launch_bounds__(256) norm_grad_any_kernel(Backward<T> p) {
  __shared__ float shared[8];
  const int64_t row = blockIdx.x, at = row * p.cols;
  const float mean = p.mean[row], rstd = p.rstd[row];
  float s = 0, sx = 0, w[1];
  for (int c = threadIdx.x; c < p.cols; c += 256) {
    p.gamma.template get<1>(c, w);
    const float g = to_float(p.dout[at + c]) * w[0];
    s += g;
    sx += g * (to_float(p.x[at + c]) - mean) * rstd;
  }
  s = group_sum<8>(s, shared) / static_cast<float>(p.cols);
  sx = group_sum<8>(sx, shared) / static_cast<float>(p.cols);
  for (int c = threadIdx.x; c < p.cols; c += 256) {
    p.gamma.template get<1>(c, w);
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

// dgamma and dbeta of one chunk of rows for any row length; a thread a column.
template <class T>
__global__ void __launch_bounds__(256) norm_weights_any_kernel(Backward<T> p, int64_t chunk) {
  const int c = blockIdx.x * 256 + threadIdx.x;
  if (c >= p.cols) return;
  const int64_t end = min(p.n, (int64_t{blockIdx.y} + 1) * chunk);
  float dgamma = 0, dbeta = 0;
#pragma unroll 4
  for (int64_t row = int64_t{blockIdx.y} * chunk; row < end; ++row) {
    const float d = to_float(p.dout[row * p.cols + c]);
    dgamma += d * (to_float(p.x[row * p.cols + c]) - p.mean[row]) * p.rstd[row];
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
  GT_CHECK(a.gamma.numel() == cols && a.beta.numel() == cols && a.rstd.numel() == n, kOp, ": x ", to_string(a.x.shape),
           " gamma ", to_string(a.gamma.shape), " rstd ", to_string(a.rstd.shape));
  GT_CHECK(a.out || a.rows || a.columns, kOp, ": neither out nor codes of it are wanted");
  GT_CHECK((!a.out || a.out.numel() == all) && (!a.rows || a.rows.numel() == all) &&
               (!a.columns || a.columns.numel() == all),
           kOp, ": x ", to_string(a.x.shape), " out ", to_string(a.out.shape), " rows ", to_string(a.rows.shape),
           " columns ", to_string(a.columns.shape));
  if (a.out) want(kOp, "out", a.out, a.x.dtype);
  if (a.delta) want(kOp, "sum", a.sum, a.x.dtype);
  if (a.rows) want(kOp, "rows", a.rows, DType::kF8E4M3);
  if (a.columns) want(kOp, "columns", a.columns, DType::kF8E4M3);
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
          by_row_shape<T, kForward>(cols, [&](auto shape) {
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
  const bool encodes = a.rows || a.columns || a.seen;
  if (encodes && norm_codes(a, c)) return leave(c, "layer_norm");
  LayerNorm plain = a;
  if (!a.out) plain.out = {c.scratch(a.x.bytes()), a.x.shape, a.x.dtype, a.x.device};
  plain_norm(plain, c);
  leave(c, "layer_norm");
  if (encodes)
    quantize_fp8({.x = plain.out,
                  .amax = a.amax,
                  .rows = a.rows,
                  .columns = a.columns,
                  .inverse = a.inverse,
                  .seen = a.seen,
                  .seen_anew = a.seen_anew},
                 s);
}

void layer_norm_grad(const LayerNormGrad& a, Stream s) {
  const int64_t cols = a.gamma.numel();
  if (cols == 0) return;
  const int64_t n = a.x.numel() / cols;
  Context& c = enter(s, "layer_norm_grad");
  GT_CHECK(n * cols == a.x.numel() && a.dout.numel() == a.x.numel() && (!a.dx || a.dx.numel() == a.x.numel()) &&
               a.rstd.numel() == n,
           "layer_norm_grad: x ", to_string(a.x.shape), " dout ", to_string(a.dout.shape), " gamma ",
           to_string(a.gamma.shape));
  GT_CHECK(static_cast<bool>(a.dgamma) == static_cast<bool>(a.dbeta), "layer_norm_grad: dgamma and dbeta go together");
  want("layer_norm_grad", "dout", a.dout, a.x.dtype);
  if (a.dx) want("layer_norm_grad", "dx", a.dx, a.x.dtype);
  if (a.dsum) want("layer_norm_grad", "dsum", a.dsum, a.x.dtype);
  if (a.drop) {
    GT_CHECK(a.ddelta.numel() == a.dx.numel() && !a.accumulate_dx, "layer_norm_grad: ddelta ",
             to_string(a.ddelta.shape), " for dx ", to_string(a.dx.shape), " that is not accumulated");
  }
  if (a.dgamma) want("layer_norm_grad", "dbeta", a.dbeta, a.dgamma.dtype);
  GT_CHECK(!a.dbias || (a.dx && a.dbias.numel() == cols), "layer_norm_grad: dbias ", to_string(a.dbias.shape),
           " of dx ", to_string(a.dx.shape));
  if (n == 0 && !a.dgamma && !a.dbias) return;
  // Shares depend on the shape alone, never on the device: they fill an H200 once.
  constexpr int64_t kMultiprocessors = 132;
  const int64_t chunk = std::max<int64_t>(16, ceil_div(n, 256));
  int64_t parts = 0;
  float* room = nullptr;
  bool fits = false;
  by_dtype("layer_norm_grad", "x", a.x.dtype, [&](auto t) {
    using T = decltype(t);
    Backward<T> p{a.x.as<T>(),
                  weights<T>("layer_norm_grad", "gamma", a.gamma, a.x.dtype),
                  a.mean.as<float>(),
                  a.rstd.as<float>(),
                  a.dout.as<T>(),
                  a.dsum.as<T>(),
                  a.dx.as<T>(),
                  nullptr,
                  n,
                  static_cast<int>(cols),
                  a.accumulate_dx,
                  branch<T>("layer_norm_grad", "ddelta", a.ddelta, a.x.dtype),
                  a.drop,
                  nullptr};
    const auto divide = [&](int64_t into) {
      parts = into;
      room = reinterpret_cast<float*>(c.scratch(parts * 3 * cols * 4));
      if (a.dgamma) p.partial = room;
      if (a.dbias) p.bias_partial = room + parts * 2 * cols;
    };
    if (n == 0) return;
    by_drop(a.drop, [&](auto drops) {
      constexpr bool kDrops = decltype(drops)::value;
      // Weights alone (a deferred pass) are the column kernel's work: testing for dx here would spill registers.
      fits = a.dx && aligned16({a.x.data, a.gamma.data, a.dout.data, a.dsum.data, a.dx.data, a.ddelta.data}) &&
             by_row_shape<T, kBackward>(cols, [&](auto shape) {
               constexpr int kK = decltype(shape)::k, kW = decltype(shape)::w;
               divide(std::min<int64_t>(kW == 1 ? ceil_div(n, 4) : n, kMultiprocessors * kHeld<kPack<T>, kK, kW>));
               const int threads = kW == 1 ? 128 : 32 * kW;
               const size_t shared = a.dbias ? size_t{kK} * kPack<T> * static_cast<size_t>(threads) * sizeof(float) : 0;
               norm_grad_kernel<T, kPack<T>, kK, kW, kDrops>
                   <<<static_cast<unsigned>(parts), threads, shared, c.stream>>>(p);
             });
      if (fits) return;
      // Weights first: dx and ddelta may alias what they read.
      divide(ceil_div(n, chunk));
      const dim3 grid(static_cast<unsigned>(ceil_div(cols, 256)), static_cast<unsigned>(parts));
      if (a.dgamma) norm_weights_any_kernel<T><<<grid, 256, 0, c.stream>>>(p, chunk);
      if (a.dx) norm_grad_any_kernel<T, kDrops><<<static_cast<unsigned>(n), 256, 0, c.stream>>>(p);
    });
  });
  if (a.dgamma)
    combine_partials(c, room, static_cast<int>(parts), 2 * cols, cols, a.dgamma, a.dbeta, a.accumulate_dw,
                     "layer_norm_grad");
  if (a.dbias && fits)
    combine_partials(c, room + parts * 2 * cols, static_cast<int>(parts), cols, cols, a.dbias, {}, a.accumulate_dbias,
                     "layer_norm_grad");
  leave(c, "layer_norm_grad");
  if (a.dbias && !fits) sum_rows({.x = a.drop ? a.ddelta : a.dx, .out = a.dbias, .accumulate = a.accumulate_dbias}, s);
}

}  // namespace gt::cuda
