// Residual add + layer norm, and its backward, in one pass each. A row lives in registers: one warp a row up to 1024
// columns, eight warps up to 8192; other sizes take the plain kernels, which read a row several times.
// Layer norm: Ba, Kiros, Hinton 2016, arXiv 1607.06450.
#include <type_traits>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vec.cuh"

namespace gt::cuda {

namespace {

// gamma and beta are f32 or the storage type of x; the branch is the same for the whole grid.
template <class T>
struct Weights {
  const void* data;
  bool f32;
  template <int V>
  __device__ void get(int64_t c, float (&w)[V]) const {
    if (f32)
      load<V>(static_cast<const float*>(data) + c, w);
    else
      load<V>(static_cast<const T*>(data) + c, w);
  }
};

// The branch that is added to x, or its gradient: of x's type, or beside f32 of a half type.
template <class T>
struct Branch {
  void* data;
  DType type;
  __device__ explicit operator bool() const { return data != nullptr; }
  template <int V>
  __device__ void get(int64_t i, float (&d)[V]) const {
    if (std::is_same_v<T, float> && type == DType::kBF16)
      load<V>(static_cast<const __nv_bfloat16*>(data) + i, d);
    else if (std::is_same_v<T, float> && type == DType::kF16)
      load<V>(static_cast<const __half*>(data) + i, d);
    else
      load<V>(static_cast<const T*>(data) + i, d);
  }
  template <int V>
  __device__ void put(int64_t i, const float (&d)[V]) const {
    if (std::is_same_v<T, float> && type == DType::kBF16)
      store<V>(static_cast<__nv_bfloat16*>(data) + i, d);
    else if (std::is_same_v<T, float> && type == DType::kF16)
      store<V>(static_cast<__half*>(data) + i, d);
    else
      store<V>(static_cast<T*>(data) + i, d);
  }
};

template <class T>
struct Forward {
  const T* x;
  Branch<T> delta;
  Weights<T> gamma, beta;
  T *sum, *out;
  float *mean, *rstd;
  int64_t n;
  int cols;
  float eps;
  RowDrop drop;

  __device__ void statistics(int64_t row, float m, float r) const {
    if (mean != nullptr) mean[row] = m;
    rstd[row] = r;
  }
};

// W warps share a row, K packs of V elements a lane. Drop: dropout of delta.
template <class T, int V, int K, int W, bool Drop>
__global__ void __launch_bounds__(W == 1 ? 128 : 32 * W) norm_kernel(Forward<T> p) {
  __shared__ float shared[W];
  const int lane = W == 1 ? threadIdx.x % 32 : threadIdx.x;
  const int64_t row = W == 1 ? int64_t{blockIdx.x} * 4 + threadIdx.x / 32 : blockIdx.x;
  if (row >= p.n) return;  // whole warps leave; with W > 1 the grid is exact
  const T* x = p.x + row * p.cols;
  float v[K][V];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int c = (k * 32 * W + lane) * V;
    if (c < p.cols) load<V>(x + c, v[k]);
  }
  if (p.delta) {
    float d[K][V];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int c = (k * 32 * W + lane) * V;
      if (c < p.cols) p.delta.template get<V>(row * p.cols + c, d[k]);
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int c = (k * 32 * W + lane) * V;
      if (c >= p.cols) continue;
      if constexpr (Drop) drop<V>(p.drop, row, p.cols, c, d[k]);
#pragma unroll
      for (int j = 0; j < V; ++j) v[k][j] = rounded<T>(v[k][j] + d[k][j]);
      store<V>(p.sum + row * p.cols + c, v[k]);
    }
  }
  float s = 0;
#pragma unroll
  for (int k = 0; k < K; ++k)
    if ((k * 32 * W + lane) * V < p.cols)
#pragma unroll
      for (int j = 0; j < V; ++j) s += v[k][j];
  const float mean = group_sum<W>(s, shared) / static_cast<float>(p.cols);
  float q = 0;
#pragma unroll
  for (int k = 0; k < K; ++k)
    if ((k * 32 * W + lane) * V < p.cols)
#pragma unroll
      for (int j = 0; j < V; ++j) q += (v[k][j] - mean) * (v[k][j] - mean);
  const float rstd = 1.0f / sqrtf(group_sum<W>(q, shared) / static_cast<float>(p.cols) + p.eps);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int c = (k * 32 * W + lane) * V;
    if (c >= p.cols) continue;
    float g[V], b[V];
    p.gamma.template get<V>(c, g);
    p.beta.template get<V>(c, b);
#pragma unroll
    for (int j = 0; j < V; ++j) v[k][j] = (v[k][j] - mean) * rstd * g[j] + b[j];
    store<V>(p.out + row * p.cols + c, v[k]);
  }
  if (lane == 0) p.statistics(row, mean, rstd);
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
  const float mean = group_sum<8>(s, shared) / static_cast<float>(p.cols);
  float q = 0;
  for (int c = threadIdx.x; c < p.cols; c += 256) {
    const float d = to_float(x[at + c]) - mean;
    q += d * d;
  }
  const float rstd = 1.0f / sqrtf(group_sum<8>(q, shared) / static_cast<float>(p.cols) + p.eps);
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
};

// Blocks walk over rows and keep their share of dgamma and dbeta in registers until the end.
template <class T, int V, int K, int W, bool Drop>
__global__ void __launch_bounds__(W == 1 ? 128 : 32 * W) norm_grad_kernel(Backward<T> p) {
  __shared__ float shared[W];
  const int lane = W == 1 ? threadIdx.x % 32 : threadIdx.x;
  const int64_t first = W == 1 ? int64_t{blockIdx.x} * 4 + threadIdx.x / 32 : blockIdx.x;
  const int64_t step = int64_t{gridDim.x} * (W == 1 ? 4 : 1);
  float dgamma[K][V] = {}, dbeta[K][V] = {};
  for (int64_t row = first; row < p.n; row += step) {
    const int64_t at = row * p.cols;
    const float mean = p.mean[row], rstd = p.rstd[row];
    float x[K][V], g[K][V];
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
      if (p.dsum != nullptr) {
        load<V>(p.dsum + at + c, more);
#pragma unroll
        for (int j = 0; j < V; ++j) x[k][j] += more[j];
      }
      if (p.accumulate) {
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
    }
  }
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

// The smallest register shape that holds a row: at most 32 elements a lane, and in one warp at most `Most`; more spill in
// the backward.
template <int K, int W>
struct RowShape {
  static constexpr int k = K, w = W;
};

constexpr int kForward = 32, kBackward = 24;

// Calls f with it; false when there is none.
template <class T, int Most, class F>
bool by_row_shape(int64_t cols, F&& f) {
  constexpr int kV = kPack<T>;
  if (cols % kV != 0 || cols > 32 * 256) return false;
  if (cols <= 16 * 32)
    f(RowShape<16 / kV, 1>{});
  else if (cols <= 24 * 32)
    f(RowShape<24 / kV, 1>{});
  else if (cols <= Most * 32)
    f(RowShape<Most / kV, 1>{});
  else if (cols <= 8 * 256)
    f(RowShape<8 / kV, 8>{});
  else if (cols <= 16 * 256)
    f(RowShape<16 / kV, 8>{});
  else
    f(RowShape<32 / kV, 8>{});
  return true;
}

// f(std::bool_constant): with or without dropout.
template <class F>
void by_drop(const RowDrop& d, F&& f) {
  if (d) return f(std::true_type{});
  f(std::false_type{});
}

template <class T>
Weights<T> weights(const char* op, const char* name, const Tensor& w, DType main) {
  GT_REQUIRE(w.dtype == DType::kF32 || w.dtype == main, Exit::kUsage, "cuda ", op, ": ", name, " is ", name_of(w.dtype),
             " beside ", name_of(main), "; f32 or the same is supported");
  return {w.data, w.dtype == DType::kF32};
}

template <class T>
Branch<T> branch(const char* op, const char* name, const Tensor& d, DType main) {
  if (!d) return {nullptr, main};
  if (main == DType::kF32)
    by_dtype(op, name, d.dtype, [](auto) {});
  else
    want(op, name, d, main);
  return {d.data, d.dtype};
}

}  // namespace

void layer_norm(const LayerNorm& a, Stream s) {
  const int64_t cols = a.x.shape.cols(), n = a.x.shape.rows();
  if (a.x.numel() == 0) return;
  Context& c = enter(s, "layer_norm");
  GT_CHECK(a.gamma.numel() == cols && a.beta.numel() == cols && a.rstd.numel() == n && a.out.numel() == a.x.numel(),
           "layer_norm: x ", to_string(a.x.shape), " gamma ", to_string(a.gamma.shape), " rstd ",
           to_string(a.rstd.shape));
  want("layer_norm", "out", a.out, a.x.dtype);
  if (a.delta) want("layer_norm", "sum", a.sum, a.x.dtype);
  GT_CHECK(!a.drop || a.delta, "layer_norm: dropout without a delta to act on");
  by_dtype("layer_norm", "x", a.x.dtype, [&](auto t) {
    using T = decltype(t);
    const Forward<T> p{a.x.as<T>(),
                       branch<T>("layer_norm", "delta", a.delta, a.x.dtype),
                       weights<T>("layer_norm", "gamma", a.gamma, a.x.dtype),
                       weights<T>("layer_norm", "beta", a.beta, a.x.dtype),
                       a.sum.as<T>(),
                       a.out.as<T>(),
                       a.mean.as<float>(),
                       a.rstd.as<float>(),
                       n,
                       static_cast<int>(cols),
                       a.eps,
                       a.drop};
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
  leave(c, "layer_norm");
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
  if (n == 0 && !a.dgamma) return;
  // Shares depend on the shape alone, never on the number of multiprocessors.
  const int64_t chunk = std::max<int64_t>(16, ceil_div(n, 256));
  int64_t parts = 0;
  float* partial = a.dgamma ? reinterpret_cast<float*>(c.scratch(528 * 2 * cols * 4)) : nullptr;
  by_dtype("layer_norm_grad", "x", a.x.dtype, [&](auto t) {
    using T = decltype(t);
    const Backward<T> p{a.x.as<T>(),
                        weights<T>("layer_norm_grad", "gamma", a.gamma, a.x.dtype),
                        a.mean.as<float>(),
                        a.rstd.as<float>(),
                        a.dout.as<T>(),
                        a.dsum.as<T>(),
                        a.dx.as<T>(),
                        partial,
                        n,
                        static_cast<int>(cols),
                        a.accumulate_dx,
                        branch<T>("layer_norm_grad", "ddelta", a.ddelta, a.x.dtype),
                        a.drop};
    if (n == 0) return;
    by_drop(a.drop, [&](auto drops) {
      constexpr bool kDrops = decltype(drops)::value;
      // Weights alone (a deferred pass) are the column kernel's work: testing for dx here would spill registers.
      const bool fits = a.dx &&
                        aligned16({a.x.data, a.gamma.data, a.dout.data, a.dsum.data, a.dx.data, a.ddelta.data}) &&
                        by_row_shape<T, kBackward>(cols, [&](auto shape) {
                          constexpr int kK = decltype(shape)::k, kW = decltype(shape)::w;
                          parts = kW == 1 ? std::min<int64_t>(ceil_div(n, 4), 264) : std::min<int64_t>(n, 528);
                          norm_grad_kernel<T, kPack<T>, kK, kW, kDrops>
                              <<<static_cast<unsigned>(parts), kW == 1 ? 128 : 32 * kW, 0, c.stream>>>(p);
                        });
      if (fits) return;
      // Weights first: dx and ddelta may alias what they read.
      parts = ceil_div(n, chunk);
      const dim3 grid(static_cast<unsigned>(ceil_div(cols, 256)), static_cast<unsigned>(parts));
      if (partial != nullptr) norm_weights_any_kernel<T><<<grid, 256, 0, c.stream>>>(p, chunk);
      if (a.dx) norm_grad_any_kernel<T, kDrops><<<static_cast<unsigned>(n), 256, 0, c.stream>>>(p);
    });
  });
  if (a.dgamma)
    combine_partials(c, partial, static_cast<int>(parts), 2 * cols, cols, a.dgamma, a.dbeta, a.accumulate_dw,
                     "layer_norm_grad");
  leave(c, "layer_norm_grad");
}

}  // namespace gt::cuda
