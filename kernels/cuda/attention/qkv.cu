// Ops on the heads of packed qkv before attention. Rotary embedding: each thread processes a 16-byte pack of both
// halves of a head. QK norm: one warp per head, which reads it twice, the second time from cache.
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/norm/norm.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vec.cuh"

namespace gt::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

struct RopeShape {
  int64_t rows, cols, heads, head_dim, dim;  // dim: rotary channels per head
  Positions at;
};

// Requires: V divides dim / 2, cols and head_dim.
template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(T* x, const float* table, const int32_t* positions, RopeShape p, float sign) {
  const int64_t half = p.dim / 2, packs = half / V, all = p.rows * p.heads * packs;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < all; i += step) {
    const int64_t head = i / packs, r = head / p.heads, c = (i - head * packs) * V;
    const int64_t position = p.at.position(r, positions);
    T* low = x + r * p.cols + (head - r * p.heads) * p.head_dim + c;
    const float* turn = table + position * p.dim + c;
    float a[V], b[V], cosine[V], sine[V], to[V];
    load<V>(low, a);
    load<V>(low + half, b);
    load<V>(turn, cosine);
    load<V>(turn + half, sine);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      sine[j] *= sign;
      to[j] = a[j] * cosine[j] - b[j] * sine[j];
      b[j] = b[j] * cosine[j] + a[j] * sine[j];
    }
    store_at_once<V>(low, to);
    store_at_once<V>(low + half, b);
  }
}

// Layout of a packed qkv row: `heads` query heads, then `kv_heads` key heads, then `kv_heads` value heads.
struct Heads {
  int64_t rows, heads, kv_heads;
  int dim;
  __device__ int64_t all() const { return heads + 2 * kv_heads; }
  __device__ int64_t normed() const { return heads + kv_heads; }
};

template <class T>
struct HeadWeights {
  Weights<T> q, k;
  float offset;
  template <int V>
  __device__ void get(bool query, int c, float (&w)[V]) const {
    if (query)
      q.template get<V>(c, w);
    else
      k.template get<V>(c, w);
#pragma unroll
    for (int j = 0; j < V; ++j) w[j] += offset;
  }
};

// Requires: V divides dim.
template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    qk_norm_kernel(const T* qkv, HeadWeights<T> weights, T* out, float* rstd, Heads p, float eps) {
  const int64_t unit = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (unit >= p.rows * p.all()) return;  // whole warps exit
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = unit / p.all(), head = unit - row * p.all();
  const T* x = qkv + unit * p.dim;
  T* to = out + unit * p.dim;
  float v[V], w[V];
  if (head >= p.normed()) {  // value heads
    for (int c = lane * V; to != x && c < p.dim; c += 32 * V) {
      load<V>(x + c, v);
      store<V>(to + c, v);
    }
    return;
  }
  float squares = 0;
  for (int c = lane * V; c < p.dim; c += 32 * V) {
    load<V>(x + c, v);
#pragma unroll
    for (int j = 0; j < V; ++j) squares += v[j] * v[j];
  }
  const float r = inverse_root(warp_sum(squares) / static_cast<float>(p.dim) + eps);
  for (int c = lane * V; c < p.dim; c += 32 * V) {
    load<V>(x + c, v);
    weights.get(head < p.heads, c, w);
#pragma unroll
    for (int j = 0; j < V; ++j) v[j] = v[j] * r * w[j];
    store<V>(to + c, v);
  }
  if (lane == 0) rstd[row * p.normed() + head] = r;
}

// dqkv may alias dout: each thread writes only elements that it alone has read.
template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    qk_norm_grad_kernel(const T* qkv, HeadWeights<T> weights, const float* rstd, const T* dout, T* dqkv, Heads p) {
  const int64_t unit = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (unit >= p.rows * p.all()) return;  // whole warps exit
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = unit / p.all(), head = unit - row * p.all();
  const T *x = qkv + unit * p.dim, *dy = dout + unit * p.dim;
  T* dx = dqkv + unit * p.dim;
  float v[V], d[V], w[V];
  if (head >= p.normed()) {  // value heads
    for (int c = lane * V; dx != dy && c < p.dim; c += 32 * V) {
      load<V>(dy + c, d);
      store<V>(dx + c, d);
    }
    return;
  }
  const float r = rstd[row * p.normed() + head];
  float sum = 0;
  for (int c = lane * V; c < p.dim; c += 32 * V) {
    load<V>(x + c, v);
    load<V>(dy + c, d);
    weights.get(head < p.heads, c, w);
#pragma unroll
    for (int j = 0; j < V; ++j) sum += d[j] * w[j] * v[j] * r;
  }
  sum = warp_sum(sum) / static_cast<float>(p.dim);
  for (int c = lane * V; c < p.dim; c += 32 * V) {
    load<V>(x + c, v);
    load<V>(dy + c, d);
    weights.get(head < p.heads, c, w);
#pragma unroll
    for (int j = 0; j < V; ++j) d[j] = r * (d[j] * w[j] - v[j] * r * sum);
    store<V>(dx + c, d);
  }
}

// QK norm weight gradients of one chunk of rows, for queries or keys (blockIdx.z). Block (32, 8) covers 32 V channels;
// threadIdx.y = y adds rows y, y + 8, ...; the 8 partial sums are added in order. partial: [chunks][2][dim].
template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    qk_weights_kernel(const T* qkv, const float* rstd, const T* dout, float* partial, Heads p, int64_t chunk) {
  const int c = static_cast<int>(blockIdx.x * 32 + threadIdx.x) * V;
  const int64_t first = blockIdx.z == 0 ? 0 : p.heads, count = blockIdx.z == 0 ? p.heads : p.kv_heads;
  const int64_t end = min(p.rows, (int64_t{blockIdx.y} + 1) * chunk);
  float sum[V] = {};
  if (c < p.dim) {
    for (int64_t row = int64_t{blockIdx.y} * chunk + threadIdx.y; row < end; row += 8) {
      for (int64_t h = first; h < first + count; ++h) {
        const int64_t at = (row * p.all() + h) * p.dim + c;
        const float r = rstd[row * p.normed() + h];
        float v[V], d[V];
        load<V>(qkv + at, v);
        load<V>(dout + at, d);
#pragma unroll
        for (int j = 0; j < V; ++j) sum[j] += d[j] * v[j] * r;
      }
    }
  }
  __shared__ float lane[8][32 * V + 1];
#pragma unroll
  for (int j = 0; j < V; ++j) lane[threadIdx.y][threadIdx.x * V + j] = sum[j];
  __syncthreads();
  for (int t = static_cast<int>(threadIdx.y * 32 + threadIdx.x); t < 32 * V; t += kThreads) {
    const int channel = static_cast<int>(blockIdx.x) * 32 * V + t;
    if (channel >= p.dim) continue;
    float all = lane[0][t];
    for (int y = 1; y < 8; ++y) all += lane[y][t];
    partial[(int64_t{blockIdx.y} * 2 + blockIdx.z) * p.dim + channel] = all;
  }
}

RopeShape validate(const Rope& a) {
  constexpr const char* kOp = "rope";
  const RopeShape p{a.x.shape.rows(), a.x.shape.cols(), a.heads, a.head_dim, a.table.shape.cols(), a.rows};
  require_dtype(kOp, "table", a.table, DType::kF32);
  if (a.positions) require_dtype(kOp, "positions", a.positions, DType::kI32);
  GT_CHECK(a.heads > 0 && a.heads * a.head_dim <= p.cols && p.dim % 2 == 0 && p.dim <= a.head_dim && a.rows.seq > 0 &&
               (!a.positions || a.positions.numel() == p.rows),
           kOp, ": x ", to_string(a.x.shape), ", heads ", a.heads, " of ", a.head_dim, ", table ",
           to_string(a.table.shape), ", seq ", a.rows.seq, ", positions ", to_string(a.positions.shape));
  GT_CHECK(a.positions || (a.rows.first >= 0 && a.rows.end(p.rows) <= a.table.shape.rows()), kOp, ": positions from ",
           a.rows.first, " on of sequences of ", a.rows.seq, " in a table of ", a.table.shape.rows());
  return p;
}

template <class Args>
Heads validate(const char* op, const Args& a) {
  const Heads p{a.qkv.shape.rows(), a.heads, a.kv_heads, static_cast<int>(a.head_dim)};
  GT_CHECK(a.heads > 0 && a.kv_heads > 0 && a.qkv.shape.cols() == (a.heads + 2 * a.kv_heads) * a.head_dim &&
               a.q_gamma.numel() == a.head_dim && a.k_gamma.numel() == a.head_dim &&
               a.rstd.numel() == p.rows * (a.heads + a.kv_heads),
           op, ": qkv ", to_string(a.qkv.shape), " of ", a.heads, " + 2 * ", a.kv_heads, " heads of ", a.head_dim,
           ", q_gamma ", to_string(a.q_gamma.shape), ", k_gamma ", to_string(a.k_gamma.shape), ", rstd ",
           to_string(a.rstd.shape));
  require_dtype(op, "rstd", a.rstd, DType::kF32);
  return p;
}

template <class T, class Args>
HeadWeights<T> head_weights(const char* op, const Args& a) {
  return {weights<T>(op, "q_gamma", a.q_gamma, a.qkv.dtype), weights<T>(op, "k_gamma", a.k_gamma, a.qkv.dtype),
          a.gamma_offset};
}

// Calls f(std::integral_constant<int, V>) with the widest pack that fits.
template <class T, class F>
void by_width(bool wide, F&& f) {
  if (wide) return f(std::integral_constant<int, kPack<T>>{});
  f(std::integral_constant<int, 1>{});
}

}  // namespace

void rope(const Rope& a, Stream s) {
  const RopeShape p = validate(a);
  if (a.x.numel() == 0 || p.dim == 0) return;
  Context& c = enter(s, "rope");
  by_dtype("rope", "x", a.x.dtype, [&](auto t) {
    using T = decltype(t);
    const bool wide = p.dim / 2 % kPack<T> == 0 && p.head_dim % kPack<T> == 0 && p.cols % kPack<T> == 0 &&
                      aligned16({a.x.data, a.table.data});
    by_width<T>(wide, [&](auto v) {
      constexpr int kV = decltype(v)::value;
      const int64_t blocks = std::min<int64_t>(ceil_div(p.rows * p.heads * (p.dim / 2 / kV), kThreads), 1 << 20);
      rope_kernel<kV, T><<<static_cast<unsigned>(blocks), kThreads, 0, c.stream>>>(
          a.x.as<T>(), a.table.as<float>(), a.positions.as<int32_t>(), p, a.backward ? -1.0f : 1.0f);
    });
  });
  leave(c, "rope");
}

void qk_norm(const QkNorm& a, Stream s) {
  constexpr const char* kOp = "qk_norm";
  const Heads p = validate(kOp, a);
  require_dtype(kOp, "out", a.out, a.qkv.dtype);
  GT_CHECK(a.out.numel() == a.qkv.numel(), kOp, ": out ", to_string(a.out.shape));
  if (a.qkv.numel() == 0) return;
  Context& c = enter(s, kOp);
  by_dtype(kOp, "qkv", a.qkv.dtype, [&](auto t) {
    using T = decltype(t);
    const bool wide = p.dim % kPack<T> == 0 && aligned16({a.qkv.data, a.q_gamma.data, a.k_gamma.data, a.out.data});
    by_width<T>(wide, [&](auto v) {
      const int64_t blocks = ceil_div(p.rows * (p.heads + 2 * p.kv_heads), kWarps);
      qk_norm_kernel<decltype(v)::value, T><<<static_cast<unsigned>(blocks), kThreads, 0, c.stream>>>(
          a.qkv.as<T>(), head_weights<T>(kOp, a), a.out.as<T>(), a.rstd.as<float>(), p, a.eps);
    });
  });
  leave(c, kOp);
}

void qk_norm_grad(const QkNormGrad& a, Stream s) {
  constexpr const char* kOp = "qk_norm_grad";
  const Heads p = validate(kOp, a);
  require_dtype(kOp, "dout", a.dout, a.qkv.dtype);
  if (a.dqkv) require_dtype(kOp, "dqkv", a.dqkv, a.qkv.dtype);
  GT_CHECK(a.dout.numel() == a.qkv.numel() && (!a.dqkv || a.dqkv.numel() == a.qkv.numel()), kOp, ": dout ",
           to_string(a.dout.shape), ", dqkv ", to_string(a.dqkv.shape));
  GT_CHECK(static_cast<bool>(a.dq_gamma) == static_cast<bool>(a.dk_gamma), kOp, ": dq_gamma and dk_gamma go together");
  if (a.dk_gamma) require_dtype(kOp, "dk_gamma", a.dk_gamma, a.dq_gamma.dtype);
  if (p.rows == 0 && !a.dq_gamma) return;
  Context& c = enter(s, kOp);
  // The chunk size depends on the shape alone: bitwise identical on all devices of a kind. Weights first: dqkv may
  // alias dout.
  const int64_t chunk = std::max<int64_t>(16, ceil_div(p.rows, 128)), parts = ceil_div(p.rows, chunk);
  float* partial = reinterpret_cast<float*>(c.scratch(std::max<int64_t>(parts, 1) * 2 * p.dim * size_of(DType::kF32)));
  by_dtype(kOp, "qkv", a.qkv.dtype, [&](auto t) {
    using T = decltype(t);
    const bool wide =
        p.dim % kPack<T> == 0 && aligned16({a.qkv.data, a.q_gamma.data, a.k_gamma.data, a.dout.data, a.dqkv.data});
    if (p.rows == 0) return;
    by_width<T>(wide, [&](auto v) {
      constexpr int kV = decltype(v)::value;
      const dim3 grid(static_cast<unsigned>(ceil_div(p.dim, 32 * kV)), static_cast<unsigned>(parts), 2);
      if (a.dq_gamma)
        qk_weights_kernel<kV, T>
            <<<grid, dim3(32, 8), 0, c.stream>>>(a.qkv.as<T>(), a.rstd.as<float>(), a.dout.as<T>(), partial, p, chunk);
      const int64_t blocks = ceil_div(p.rows * (p.heads + 2 * p.kv_heads), kWarps);
      if (a.dqkv)
        qk_norm_grad_kernel<kV, T><<<static_cast<unsigned>(blocks), kThreads, 0, c.stream>>>(
            a.qkv.as<T>(), head_weights<T>(kOp, a), a.rstd.as<float>(), a.dout.as<T>(), a.dqkv.as<T>(), p);
    });
  });
  if (a.dq_gamma)
    combine_partials(c, partial, static_cast<int>(parts), 2 * p.dim, p.dim, a.dq_gamma, a.dk_gamma, a.accumulate_dw,
                     kOp);
  leave(c, kOp);
}

}  // namespace gt::cuda
