// Vocabulary-parallel cross-entropy: a block a row, online maximum and sum in f32 (Milakov & Gimelshein 2018, arXiv
// 1805.02867), the gradient written over the logits where the caller wants that.
#include <cmath>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vec.cuh"

namespace gt::cuda {

namespace {

constexpr int kThreads = 512;

struct MaxSum {
  float max, sum;  // sum of exp(z - max)
};

// e^(m - top) with -inf - -inf counted as an empty sum.
__device__ inline float shift(float m, float top) { return m == -INFINITY ? 0.0f : expf(m - top); }

__device__ inline MaxSum merge(MaxSum a, MaxSum b) {
  const float top = fmaxf(a.max, b.max);
  return {top, a.sum * shift(a.max, top) + b.sum * shift(b.max, top)};
}

template <int N>
__device__ inline void take(MaxSum& s, const float (&z)[N], int count) {
  float top = s.max;
#pragma unroll
  for (int j = 0; j < N; ++j)
    if (j < count) top = fmaxf(top, z[j]);
  float sum = s.sum * shift(s.max, top);
#pragma unroll
  for (int j = 0; j < N; ++j)
    if (j < count) sum += z[j] == -INFINITY ? 0.0f : expf(z[j] - top);
  s = {top, sum};
}

template <int V, class T>
__global__ void __launch_bounds__(kThreads) stats_kernel(const T* logits, const int32_t* targets, float* stats,
                                                         int64_t cols, int64_t valid, int64_t first_col) {
  const int64_t row = blockIdx.x;
  const T* z = logits + row * cols;
  MaxSum s{-INFINITY, 0};
  for (int64_t c = int64_t{threadIdx.x} * V; c < valid; c += int64_t{kThreads} * V) {
    float x[V];
    load<V>(z + c, x);  // cols is a multiple of V: a pack that begins inside the row ends inside
    take(s, x, static_cast<int>(min(int64_t{V}, valid - c)));
  }
#pragma unroll
  for (int m = 16; m > 0; m >>= 1)
    s = merge(s, MaxSum{__shfl_xor_sync(kAllLanes, s.max, m), __shfl_xor_sync(kAllLanes, s.sum, m)});
  __shared__ MaxSum warp[kThreads / 32];
  if (threadIdx.x % 32 == 0) warp[threadIdx.x / 32] = s;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kThreads / 32; ++w) s = merge(s, warp[w]);
  const int64_t t = targets[row] < 0 ? -1 : targets[row] - first_col;
  stats[row * 3] = s.max;
  stats[row * 3 + 1] = s.sum;
  stats[row * 3 + 2] = t >= 0 && t < valid ? to_float(z[t]) : 0.0f;
}

// Each thread combines the statistics of all ranks for itself: a few broadcast loads, in rank order.
template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    grad_kernel(const T* logits, const int32_t* targets, const float* stats, const float* seed, float* loss, T* dlogits,
                int64_t n, int64_t cols, int64_t valid, int64_t first_col, int64_t parts) {
  const int64_t row = blockIdx.x;
  const int32_t target = targets[row];
  float top = -INFINITY, sum = 0, z_target = 0;
  for (int64_t p = 0; p < parts; ++p) top = fmaxf(top, stats[(p * n + row) * 3]);
  for (int64_t p = 0; p < parts; ++p) {
    const float* s = stats + (p * n + row) * 3;
    sum += s[1] * shift(s[0], top);
    z_target += s[2];
  }
  if (threadIdx.x == 0 && loss != nullptr) loss[row] = target < 0 ? 0.0f : logf(sum) + top - z_target;
  if (dlogits == nullptr) return;
  const float scale = target < 0 ? 0.0f : seed[0];
  const float inverse = 1.0f / sum;
  const int64_t hot = target < 0 ? -1 : target - first_col;
  for (int64_t c = int64_t{threadIdx.x} * V; c < cols; c += int64_t{kThreads} * V) {
    float x[V];
    load<V>(logits + row * cols + c, x);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float p = expf(x[j] - top) * inverse - (c + j == hot ? 1.0f : 0.0f);
      x[j] = target < 0 || c + j >= valid ? 0.0f : p * scale;
    }
    store<V>(dlogits + row * cols + c, x);
  }
}

}  // namespace

void cross_entropy_stats(const CrossEntropyStats& a, Stream s) {
  const int64_t n = a.targets.numel();
  if (n == 0) return;
  Context& c = enter(s, "cross_entropy_stats");
  const int64_t cols = a.logits.numel() / n;
  GT_CHECK(cols * n == a.logits.numel() && a.stats.numel() == 3 * n, "cross_entropy_stats: logits ",
           to_string(a.logits.shape), " targets ", to_string(a.targets.shape), " stats ", to_string(a.stats.shape));
  want("cross_entropy_stats", "targets", a.targets, DType::kI32);
  want("cross_entropy_stats", "stats", a.stats, DType::kF32);
  const int64_t valid = std::clamp<int64_t>(a.vocab - a.first_col, 0, cols);
  by_dtype("cross_entropy_stats", "logits", a.logits.dtype, [&](auto t) {
    using T = decltype(t);
    auto* kernel = cols % kPack<T> == 0 && aligned16({a.logits.data}) ? stats_kernel<kPack<T>, T> : stats_kernel<1, T>;
    kernel<<<static_cast<unsigned>(n), kThreads, 0, c.stream>>>(a.logits.as<T>(), a.targets.as<int32_t>(),
                                                                a.stats.as<float>(), cols, valid, a.first_col);
  });
  leave(c, "cross_entropy_stats");
}

void cross_entropy_grad(const CrossEntropyGrad& a, Stream s) {
  const int64_t n = a.targets.numel();
  if (n == 0) return;
  Context& c = enter(s, "cross_entropy_grad");
  const int64_t cols = a.logits.numel() / n;
  GT_CHECK(a.stats.numel() == a.parts * n * 3 && cols * n == a.logits.numel(), "cross_entropy_grad: stats ",
           to_string(a.stats.shape), " for ", a.parts, " parts of ", n, " rows, logits ", to_string(a.logits.shape));
  GT_CHECK(!a.dlogits || (a.seed && a.dlogits.numel() == a.logits.numel()),
           "cross_entropy_grad: dlogits needs seed and the shape of logits");
  want("cross_entropy_grad", "targets", a.targets, DType::kI32);
  want("cross_entropy_grad", "stats", a.stats, DType::kF32);
  if (a.dlogits) want("cross_entropy_grad", "dlogits", a.dlogits, a.logits.dtype);
  const int64_t valid = std::clamp<int64_t>(a.vocab - a.first_col, 0, cols);
  by_dtype("cross_entropy_grad", "logits", a.logits.dtype, [&](auto t) {
    using T = decltype(t);
    const bool wide = cols % kPack<T> == 0 && aligned16({a.logits.data, a.dlogits.data});
    auto* kernel = wide ? grad_kernel<kPack<T>, T> : grad_kernel<1, T>;
    kernel<<<static_cast<unsigned>(n), kThreads, 0, c.stream>>>(
        a.logits.as<T>(), a.targets.as<int32_t>(), a.stats.as<float>(), a.seed.as<float>(), a.loss.as<float>(),
        a.dlogits.as<T>(), n, cols, valid, a.first_col, a.parts);
  });
  leave(c, "cross_entropy_grad");
}

}  // namespace gt::cuda
