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
  int64_t kv_heads, capacity, dim, row;  // row: elements per row of qkv
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    store_kv_kernel(const T* qkv, const int32_t* sequences, const int32_t* positions, T* keys, T* values, int64_t heads,
                    CacheSize c) {
  const int64_t r = blockIdx.x, h = blockIdx.y;
  const int64_t to = ((sequences[r] * c.kv_heads + h) * c.capacity + positions[r]) * c.dim;
  const T* key = qkv + r * c.row + (heads + h) * c.dim;
  for (int64_t d = threadIdx.x; d < c.dim; d += kThreads) {
    keys[to + d] = key[d];
    values[to + d] = key[c.kv_heads * c.dim + d];
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
    cached_attention_kernel(const T* qkv, const int32_t* sequences, const int32_t* positions, const T* keys,
                            const T* values, T* out, int64_t heads, float scale, int64_t window, float softcap,
                            CacheSize c) {
  __shared__ float q[kMaxDim], weight[kThreads], shared[kThreads / 32];
  const int64_t r = blockIdx.x, head = blockIdx.y, kv = head / (heads / c.kv_heads);
  const int64_t at = (sequences[r] * c.kv_heads + kv) * c.capacity * c.dim;
  const int attended = positions[r] + 1;
  for (int64_t d = threadIdx.x; d < c.dim; d += kThreads) q[d] = scale * to_float(qkv[r * c.row + head * c.dim + d]);
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

template <class P>
CacheSize size_of_cache(const char* op, const P& p) {
  require_dtype(op, "sequences", p.sequences, DType::kI32);
  require_dtype(op, "positions", p.positions, DType::kI32);
  require_dtype(op, "keys", p.keys, p.qkv.dtype);
  require_dtype(op, "values", p.values, p.qkv.dtype);
  const Shape& s = p.keys.shape;
  GT_CHECK(s.rank == 4 && s == p.values.shape && p.heads > 0 && p.heads % s[1] == 0, op, ": keys ", to_string(s),
           ", values ", to_string(p.values.shape), ", heads ", p.heads);
  const CacheSize c{s[1], s[2], s[3], (p.heads + 2 * s[1]) * s[3]};
  GT_CHECK(p.qkv.numel() == p.positions.numel() * c.row && p.sequences.numel() == p.positions.numel(), op, ": qkv ",
           to_string(p.qkv.shape), " for ", p.positions.numel(), " tokens");
  return c;
}

}  // namespace

void store_kv(const StoreKv& a, Stream s) {
  const CacheSize size = size_of_cache("store_kv", a);
  const int64_t n = a.positions.numel();
  if (n == 0) return;
  Context& c = enter(s, "store_kv");
  by_dtype("store_kv", "qkv", a.qkv.dtype, [&](auto t) {
    using T = decltype(t);
    store_kv_kernel<T><<<dim3(static_cast<unsigned>(n), static_cast<unsigned>(size.kv_heads)), kThreads, 0, c.stream>>>(
        a.qkv.as<T>(), a.sequences.as<int32_t>(), a.positions.as<int32_t>(), a.keys.as<T>(), a.values.as<T>(), a.heads,
        size);
  });
  leave(c, "store_kv");
}

void cached_attention(const CachedAttention& a, Stream s) {
  const CacheSize size = size_of_cache("cached_attention", a);
  const int64_t n = a.positions.numel();
  require_dtype("cached_attention", "out", a.out, a.qkv.dtype);
  GT_CHECK(a.out.numel() == n * a.heads * size.dim, "cached_attention: out ", to_string(a.out.shape));
  GT_REQUIRE(size.dim <= kMaxDim, Exit::kUsage, "cuda cached_attention: heads of ", size.dim, " channels; up to ",
             kMaxDim, " are supported");
  GT_CHECK(a.window >= 0 && a.softcap >= 0, "cached_attention: window ", a.window, ", softcap ", a.softcap);
  if (n == 0) return;
  Context& c = enter(s, "cached_attention");
  by_dtype("cached_attention", "qkv", a.qkv.dtype, [&](auto t) {
    using T = decltype(t);
    cached_attention_kernel<T>
        <<<dim3(static_cast<unsigned>(n), static_cast<unsigned>(a.heads)), kThreads, 0, c.stream>>>(
            a.qkv.as<T>(), a.sequences.as<int32_t>(), a.positions.as<int32_t>(), a.keys.as<T>(), a.values.as<T>(),
            a.out.as<T>(), a.heads, a.scale, a.window, a.softcap, size);
  });
  leave(c, "cached_attention");
}

}  // namespace gt::cuda
