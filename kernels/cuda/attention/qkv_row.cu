// RMSNorm over all queries of a row, and over all its keys. Row sums: one block of eight warps per row; elementwise
// passes: one thread per 16-byte pack.
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/norm/norm.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vec.cuh"

namespace gt::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

struct QkRowShape {
  int64_t rows;
  int cols, queries, normed;  // columns of a row; [0, queries) are those of queries, [queries, normed) those of keys
  float q_share, k_share;     // 1 / number of elements in the sum
  float eps;
  __device__ float share(int c) const { return c < queries ? q_share : k_share; }
  // Returns the row sum of the section (queries or keys) that column c belongs to.
  __device__ float sum(const float* sums, int64_t row, int c) const { return sums[2 * row + (c < queries ? 0 : 1)]; }
  __device__ float rstd(const float* sums, int64_t row, int c) const {
    return inverse_root(sum(sums, row, c) * share(c) + eps);
  }
};

// V divides head_dim.
template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    row_sums_kernel(const T* qkv, Weights<T> gamma, const T* dout, float* sums, QkRowShape p) {
  const int64_t at = int64_t{blockIdx.x} * p.cols;
  float2 sum = make_float2(0, 0);
  for (int c = static_cast<int>(threadIdx.x) * V; c < p.normed; c += kThreads * V) {
    float v[V], s = 0;
    load<V>(qkv + at + c, v);
    if (dout != nullptr) {
      float d[V], w[V];
      load<V>(dout + at + c, d);
      gamma.template get<V>(c, w);
#pragma unroll
      for (int j = 0; j < V; ++j) s += d[j] * w[j] * v[j];
    } else {
#pragma unroll
      for (int j = 0; j < V; ++j) s += v[j] * v[j];
    }
    if (c < p.queries)
      sum.x += s;
    else
      sum.y += s;
  }
  __shared__ float shared[2 * kWarps];
  sum = group_sum<kWarps>(sum, shared);
  if (threadIdx.x != 0) return;
  sums[2 * int64_t{blockIdx.x}] = sum.x;
  sums[2 * int64_t{blockIdx.x} + 1] = sum.y;
}

// V divides head_dim.
template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    row_norm_kernel(const T* qkv, Weights<T> gamma, const float* sums, T* out, QkRowShape p) {
  const int packs = p.cols / V;
  const int64_t all = p.rows * packs, step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < all; i += step) {
    const int64_t row = i / packs;
    const int c = static_cast<int>(i - row * packs) * V;
    if (c >= p.normed && out == qkv) continue;
    float v[V];
    load<V>(qkv + i * V, v);
    if (c < p.normed) {
      float w[V];
      gamma.template get<V>(c, w);
      const float r = p.rstd(sums, row, c);
#pragma unroll
      for (int j = 0; j < V; ++j) v[j] = v[j] * r * w[j];
    }
    store<V>(out + i * V, v);
  }
}

// dqkv may alias dout: each thread writes only elements that it alone has read.
template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    row_norm_grad_kernel(const T* qkv, Weights<T> gamma, const float* sums, const float* dsums, const T* dout, T* dqkv,
                         QkRowShape p) {
  const int packs = p.cols / V;
  const int64_t all = p.rows * packs, step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < all; i += step) {
    const int64_t row = i / packs;
    const int c = static_cast<int>(i - row * packs) * V;
    if (c >= p.normed && dqkv == dout) continue;
    float d[V];
    load<V>(dout + i * V, d);
    if (c < p.normed) {
      float v[V], w[V];
      load<V>(qkv + i * V, v);
      gamma.template get<V>(c, w);
      const float r = p.rstd(sums, row, c), mean = p.sum(dsums, row, c) * p.share(c);
#pragma unroll
      for (int j = 0; j < V; ++j) d[j] = r * (d[j] * w[j] - v[j] * r * r * mean);
    }
    store<V>(dqkv + i * V, d);
  }
}

// Block (32, 8): 32 V channels of one chunk of rows. Lane y adds rows y, y + 8, ...; the partial sums are added in
// order. partial: [chunks][normed].
template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    row_weights_kernel(const T* qkv, const float* sums, const T* dout, float* partial, QkRowShape p, int64_t chunk) {
  const int c = static_cast<int>(blockIdx.x * 32 + threadIdx.x) * V;
  const int64_t end = min(p.rows, (int64_t{blockIdx.y} + 1) * chunk);
  float sum[V] = {};
  if (c < p.normed) {
    for (int64_t row = int64_t{blockIdx.y} * chunk + threadIdx.y; row < end; row += 8) {
      const float r = p.rstd(sums, row, c);
      float v[V], d[V];
      load<V>(qkv + row * p.cols + c, v);
      load<V>(dout + row * p.cols + c, d);
#pragma unroll
      for (int j = 0; j < V; ++j) sum[j] += d[j] * v[j] * r;
    }
  }
  __shared__ float lane[8][32 * V + 1];
#pragma unroll
  for (int j = 0; j < V; ++j) lane[threadIdx.y][threadIdx.x * V + j] = sum[j];
  __syncthreads();
  for (int t = static_cast<int>(threadIdx.y * 32 + threadIdx.x); t < 32 * V; t += kThreads) {
    const int channel = static_cast<int>(blockIdx.x) * 32 * V + t;
    if (channel >= p.normed) continue;
    float all = lane[0][t];
    for (int y = 1; y < 8; ++y) all += lane[y][t];
    partial[int64_t{blockIdx.y} * p.normed + channel] = all;
  }
}

template <class Args>
QkRowShape validate(const char* op, const Args& a, int64_t ranks, float eps) {
  const int64_t q = a.heads * a.head_dim, k = a.kv_heads * a.head_dim;
  GT_CHECK(a.heads > 0 && a.kv_heads > 0 && ranks > 0 && a.qkv.shape.cols() == q + 2 * k &&
               (!a.gamma || a.gamma.numel() == q + k) && a.sums.numel() == 2 * a.qkv.shape.rows(),
           op, ": qkv ", to_string(a.qkv.shape), " of ", a.heads, " + 2 * ", a.kv_heads, " heads of ", a.head_dim,
           ", gamma ", to_string(a.gamma.shape), ", sums ", to_string(a.sums.shape), ", ranks ", ranks);
  require_dtype(op, "sums", a.sums, DType::kF32);
  return {a.qkv.shape.rows(),
          static_cast<int>(q + 2 * k),
          static_cast<int>(q),
          static_cast<int>(q + k),
          1.0f / static_cast<float>(ranks * q),
          1.0f / static_cast<float>(ranks * k),
          eps};
}

// Calls f(std::integral_constant<int, V>) with the widest pack that fits.
template <class T, class F>
void by_width(bool wide, F&& f) {
  if (wide) return f(std::integral_constant<int, kPack<T>>{});
  f(std::integral_constant<int, 1>{});
}

unsigned blocks_for(const QkRowShape& p, int width) {
  return static_cast<unsigned>(std::min<int64_t>(ceil_div(p.rows * (p.cols / width), kThreads), 1 << 20));
}

}  // namespace

void qk_row_sums(const QkRowSums& a, Stream s) {
  constexpr const char* kOp = "qk_row_sums";
  const QkRowShape p = validate(kOp, a, 1, 0);
  GT_CHECK(!a.dout || (a.gamma && a.dout.numel() == a.qkv.numel()), kOp, ": dout ", to_string(a.dout.shape), ", gamma ",
           to_string(a.gamma.shape));
  if (a.dout) require_dtype(kOp, "dout", a.dout, a.qkv.dtype);
  if (p.rows == 0) return;
  Context& c = enter(s, kOp);
  by_dtype(kOp, "qkv", a.qkv.dtype, [&](auto t) {
    using T = decltype(t);
    const bool wide = a.head_dim % kPack<T> == 0 && aligned16({a.qkv.data, a.gamma.data, a.dout.data});
    by_width<T>(wide, [&](auto v) {
      row_sums_kernel<decltype(v)::value, T><<<static_cast<unsigned>(p.rows), kThreads, 0, c.stream>>>(
          a.qkv.as<T>(), weights<T>(kOp, "gamma", a.gamma, a.qkv.dtype), a.dout.as<T>(), a.sums.as<float>(), p);
    });
  });
  leave(c, kOp);
}

void qk_row_norm(const QkRowNorm& a, Stream s) {
  constexpr const char* kOp = "qk_row_norm";
  const QkRowShape p = validate(kOp, a, a.ranks, a.eps);
  require_dtype(kOp, "out", a.out, a.qkv.dtype);
  GT_CHECK(a.out.numel() == a.qkv.numel(), kOp, ": out ", to_string(a.out.shape));
  if (p.rows == 0) return;
  Context& c = enter(s, kOp);
  by_dtype(kOp, "qkv", a.qkv.dtype, [&](auto t) {
    using T = decltype(t);
    const bool wide = a.head_dim % kPack<T> == 0 && aligned16({a.qkv.data, a.gamma.data, a.out.data});
    by_width<T>(wide, [&](auto v) {
      constexpr int kV = decltype(v)::value;
      row_norm_kernel<kV, T><<<blocks_for(p, kV), kThreads, 0, c.stream>>>(
          a.qkv.as<T>(), weights<T>(kOp, "gamma", a.gamma, a.qkv.dtype), a.sums.as<float>(), a.out.as<T>(), p);
    });
  });
  leave(c, kOp);
}

void qk_row_norm_grad(const QkRowNormGrad& a, Stream s) {
  constexpr const char* kOp = "qk_row_norm_grad";
  const QkRowShape p = validate(kOp, a, a.ranks, a.eps);
  require_dtype(kOp, "dout", a.dout, a.qkv.dtype);
  if (a.dqkv) require_dtype(kOp, "dqkv", a.dqkv, a.qkv.dtype), require_dtype(kOp, "dsums", a.dsums, DType::kF32);
  GT_CHECK(a.dout.numel() == a.qkv.numel() &&
               (!a.dqkv || (a.dqkv.numel() == a.qkv.numel() && a.dsums.numel() == a.sums.numel())) &&
               (!a.dgamma || a.dgamma.numel() == p.normed),
           kOp, ": dout ", to_string(a.dout.shape), ", dqkv ", to_string(a.dqkv.shape), ", dsums ",
           to_string(a.dsums.shape), ", dgamma ", to_string(a.dgamma.shape));
  if (p.rows == 0 && !a.dgamma) return;
  Context& c = enter(s, kOp);
  // The chunk size depends on the shape alone: bitwise identical on all devices of a kind. Weights first: dqkv may
  // alias dout.
  const int64_t chunk = std::max<int64_t>(16, ceil_div(p.rows, 128)), parts = ceil_div(p.rows, chunk);
  float* partial = reinterpret_cast<float*>(c.scratch(std::max<int64_t>(parts, 1) * p.normed * size_of(DType::kF32)));
  by_dtype(kOp, "qkv", a.qkv.dtype, [&](auto t) {
    using T = decltype(t);
    const bool wide = a.head_dim % kPack<T> == 0 && aligned16({a.qkv.data, a.gamma.data, a.dout.data, a.dqkv.data});
    if (p.rows == 0) return;
    by_width<T>(wide, [&](auto v) {
      constexpr int kV = decltype(v)::value;
      const dim3 grid(static_cast<unsigned>(ceil_div(p.normed, 32 * kV)), static_cast<unsigned>(parts));
      if (a.dgamma)
        row_weights_kernel<kV, T>
            <<<grid, dim3(32, 8), 0, c.stream>>>(a.qkv.as<T>(), a.sums.as<float>(), a.dout.as<T>(), partial, p, chunk);
      if (a.dqkv)
        row_norm_grad_kernel<kV, T><<<blocks_for(p, kV), kThreads, 0, c.stream>>>(
            a.qkv.as<T>(), weights<T>(kOp, "gamma", a.gamma, a.qkv.dtype), a.sums.as<float>(), a.dsums.as<float>(),
            a.dout.as<T>(), a.dqkv.as<T>(), p);
    });
  });
  if (a.dgamma)
    combine_partials(c, partial, static_cast<int>(parts), p.normed, p.normed, a.dgamma, {}, a.accumulate_dw, kOp);
  leave(c, kOp);
}

}  // namespace gt::cuda
