// KV cache of generation: writes new tokens and attends to cached ones. One block per query head and row: threads split
// the keys of a tile for the scores, and the channels for the weighted sum, with online softmax.
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vec.cuh"

namespace gt::cuda {

namespace {

constexpr int kThreads = 128;  // also the keys per tile
constexpr int kMaxDim = 512;   // channels per head
constexpr int kPerThread = kMaxDim / kThreads;

struct CacheSize {
  int64_t kv_heads, capacity, dim;
};
// New rows of heads, `pitch` elements apart.
template <class T>
struct NewRows {
  const T* at;
  int64_t pitch;
};
template <class T>
NewRows<T> new_rows(const HeadView& v) {
  return {reinterpret_cast<const T*>(v.data()), v.pitch()};
}

template <class T>
__global__ void __launch_bounds__(kThreads) store_kv_kernel(NewRows<T> k, NewRows<T> v, const int32_t* sequences,
                                                            const int32_t* positions, T* keys, T* values, CacheSize c) {
  const int64_t r = blockIdx.x, h = blockIdx.y;
  const int64_t to = ((sequences[r] * c.kv_heads + h) * c.capacity + positions[r]) * c.dim;
  for (int64_t d = threadIdx.x; d < c.dim; d += kThreads) {
    keys[to + d] = k.at[r * k.pitch + h * c.dim + d];
    values[to + d] = v.at[r * v.pitch + h * c.dim + d];
  }
}

// Returns the maximum over the block to every thread.
__device__ inline float block_max(float x, float* shared) {
#pragma unroll
  for (int m = 16; m > 0; m >>= 1) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, m));
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = shared[0];
#pragma unroll
  for (int w = 1; w < kThreads / 32; ++w) x = fmaxf(x, shared[w]);
  return x;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    cached_attention_kernel(NewRows<T> from, const int32_t* sequences, const int32_t* positions, const T* keys,
                            const T* values, T* out, int64_t heads, float scale, int64_t window, float softcap,
                            CacheSize c) {
  __shared__ float q[kMaxDim], weight[kThreads], shared[kThreads / 32];
  const int64_t r = blockIdx.x, head = blockIdx.y, kv = head / (heads / c.kv_heads);
  const int64_t at = (sequences[r] * c.kv_heads + kv) * c.capacity * c.dim;
  const int attended = positions[r] + 1;
  for (int64_t d = threadIdx.x; d < c.dim; d += kThreads)
    q[d] = scale * to_float(from.at[r * from.pitch + head * c.dim + d]);
  __syncthreads();
  float top = -INFINITY, total = 0, acc[kPerThread] = {};
  for (int first = window > 0 && window < attended ? attended - static_cast<int>(window) : 0; first < attended;
       first += kThreads) {
    const int count = min(kThreads, attended - first), k = first + static_cast<int>(threadIdx.x);
    float score = -INFINITY;
    if (k < attended) {
      const T* key = keys + at + k * c.dim;
      float sum = 0;
      for (int64_t d = 0; d < c.dim; ++d) sum += q[d] * to_float(key[d]);
      score = softcap > 0 ? soft_cap_of(sum, softcap) : sum;
    }
    const float now = fmaxf(top, block_max(score, shared)), fade = expf(top - now), p = expf(score - now);
    weight[threadIdx.x] = p;
    total = total * fade + group_sum<kThreads / 32>(p, shared);  // its barriers also protect `weight`
    top = now;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int64_t d = threadIdx.x + i * kThreads;
      if (d >= c.dim) continue;
      float sum = acc[i] * fade;
      for (int j = 0; j < count; ++j) sum += weight[j] * to_float(values[at + (first + j) * c.dim + d]);
      acc[i] = sum;
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int64_t d = threadIdx.x + i * kThreads;
    if (d < c.dim) out[(r * heads + head) * c.dim + d] = from_float<T>(acc[i] / total);
  }
}

// Checks the cache, and `heads` heads of a view of new rows.
template <class P>
CacheSize size_of_cache(const char* op, const P& p, const char* name, const HeadView& rows, int64_t heads) {
  require_dtype(op, "sequences", p.sequences, DType::kI32);
  require_dtype(op, "positions", p.positions, DType::kI32);
  require_dtype(op, "keys", p.keys, rows.rows.dtype);
  require_dtype(op, "values", p.values, rows.rows.dtype);
  const Shape& s = p.keys.shape;
  GT_CHECK(s.rank == 4 && s == p.values.shape && heads > 0 && heads % s[1] == 0, op, ": keys ", to_string(s),
           ", values ", to_string(p.values.shape), ", heads ", heads);
  const CacheSize c{s[1], s[2], s[3]};
  const int64_t n = p.positions.numel();
  GT_CHECK(rows.rows.numel() == n * rows.pitch() && rows.column + heads * c.dim <= rows.pitch(), op, ": ", name, " ",
           to_string(rows.rows.shape), " from column ", rows.column, " on, for ", n, " tokens");
  GT_CHECK(p.sequences.numel() == n, op, ": sequences ", to_string(p.sequences.shape), " for ", n, " tokens");
  return c;
}

}  // namespace

void store_kv(const StoreKv& a, Stream s) {
  const CacheSize size = size_of_cache("store_kv", a, "k", a.k, a.keys.shape[1]);
  size_of_cache("store_kv", a, "v", a.v, size.kv_heads);
  const int64_t n = a.positions.numel();
  if (n == 0) return;
  Context& c = enter(s, "store_kv");
  by_dtype("store_kv", "keys", a.keys.dtype, [&](auto t) {
    using T = decltype(t);
    store_kv_kernel<T><<<dim3(static_cast<unsigned>(n), static_cast<unsigned>(size.kv_heads)), kThreads, 0, c.stream>>>(
        new_rows<T>(a.k), new_rows<T>(a.v), a.sequences.as<int32_t>(), a.positions.as<int32_t>(), a.keys.as<T>(),
        a.values.as<T>(), size);
  });
  leave(c, "store_kv");
}

void cached_attention(const CachedAttention& a, Stream s) {
  const CacheSize size = size_of_cache("cached_attention", a, "q", a.q, a.heads);
  const int64_t n = a.positions.numel();
  require_dtype("cached_attention", "out", a.out, a.q.rows.dtype);
  GT_CHECK(a.out.numel() == n * a.heads * size.dim, "cached_attention: out ", to_string(a.out.shape));
  GT_REQUIRE(size.dim <= kMaxDim, Exit::kUsage, "cuda cached_attention: heads of ", size.dim, " channels; up to ",
             kMaxDim, " are supported");
  GT_CHECK(a.window >= 0 && a.softcap >= 0, "cached_attention: window ", a.window, ", softcap ", a.softcap);
  if (n == 0) return;
  Context& c = enter(s, "cached_attention");
  by_dtype("cached_attention", "q", a.q.rows.dtype, [&](auto t) {
    using T = decltype(t);
    cached_attention_kernel<T>
        <<<dim3(static_cast<unsigned>(n), static_cast<unsigned>(a.heads)), kThreads, 0, c.stream>>>(
            new_rows<T>(a.q), a.sequences.as<int32_t>(), a.positions.as<int32_t>(), a.keys.as<T>(), a.values.as<T>(),
            a.out.as<T>(), a.heads, a.scale, a.window, a.softcap, size);
  });
  leave(c, "cached_attention");
}

}  // namespace gt::cuda
