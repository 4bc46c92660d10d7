// Cross-entropy: one block per row, online max and sum in f32 (Milakov & Gimelshein 2018, arXiv 1805.02867), optionally
// writing the gradient over the logits. With the whole vocabulary on this rank, rows are read once: they stay in shared
// memory between the summing and the writing pass. A vocabulary split over TP ranks takes two kernels.
#include <cmath>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vec.cuh"

namespace gt::cuda {

namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;
// Target blocks per SM: two rows of 50304 16-bit logits fit in shared memory; the streaming kernels run at full
// occupancy.
constexpr int kKeeping = 2, kStreaming = 4;

struct MaxSum {
  float max, sum;  // sum of e^(z - max)
};

// Offset of the exponents: -inf - -inf would be NaN.
__device__ inline float base_of(float top) { return top == -INFINITY ? 0.0f : top; }

__device__ inline MaxSum merge(MaxSum a, MaxSum b) {
  const float top = fmaxf(a.max, b.max), base = base_of(top);
  return {top, a.sum * exp_down(a.max - base) + b.sum * exp_down(b.max - base)};
}

// Adds the pack that begins at column c; columns from `valid` on count as -inf.
template <int V>
__device__ inline void take(MaxSum& s, float (&z)[V], int c, int valid) {
  if (c + V > valid)
#pragma unroll
    for (int j = 0; j < V; ++j)
      if (c + j >= valid) z[j] = -INFINITY;
  float top = s.max;
#pragma unroll
  for (int j = 0; j < V; ++j) top = fmaxf(top, z[j]);
  const float base = base_of(top);
  float sum = s.sum * exp_down(s.max - base);
#pragma unroll
  for (int j = 0; j < V; ++j) sum += exp_down(z[j] - base);
  s = {top, sum};
}

// Merges all threads' values; every thread gets bitwise identical results. The caller synchronizes before `warp` is
// reused.
__device__ inline MaxSum block_merge(MaxSum s, MaxSum (&warp)[kWarps]) {
#pragma unroll
  for (int m = 16; m > 0; m >>= 1)
    s = merge(s, MaxSum{__shfl_xor_sync(kAllLanes, s.max, m), __shfl_xor_sync(kAllLanes, s.sum, m)});
  if (threadIdx.x % 32 == 0) warp[threadIdx.x / 32] = s;
  __syncthreads();
  float top = -INFINITY, sum = 0;
#pragma unroll 4
  for (int w = 0; w < kWarps; ++w) top = fmaxf(top, warp[w].max);
#pragma unroll 4
  for (int w = 0; w < kWarps; ++w) sum += warp[w].sum * exp_down(warp[w].max - base_of(top));
  return {top, sum};
}

// Replaces a pack of logits by (softmax - onehot) * scale. `hot`: the target's column; `factor`: scale / sum.
template <int V>
__device__ inline void to_gradient(float (&z)[V], int c, int valid, int hot, float base, float factor, float scale) {
#pragma unroll
  for (int j = 0; j < V; ++j) z[j] = exp_down(z[j] - base) * factor;
  if (hot >= c && hot < c + V)
#pragma unroll
    for (int j = 0; j < V; ++j)
      if (c + j == hot) z[j] -= scale;
  if (c + V > valid)
#pragma unroll
    for (int j = 0; j < V; ++j)
      if (c + j >= valid) z[j] = 0;
}

// Token loss with z-loss, as on the CPU: adds z_loss * lse^2.
__device__ inline float loss_of(float lse, float z_target, float z_loss) {
  return z_loss == 0 ? lse - z_target : lse - z_target + z_loss * lse * lse;
}
// Factor of softmax * seed in the gradient.
__device__ inline float softmax_factor(float lse, float z_loss) {
  return z_loss == 0 ? 1.0f : 1.0f + 2.0f * z_loss * lse;
}

template <class T>
struct Rows {
  const T* logits;
  const int32_t* targets;
  const float* seed;
  float* loss;
  T* dlogits;
  int cols, valid;
  int kept;  // columns that stay in shared memory, a multiple of a pack; the others are read twice, then from L2
  float softcap, z_loss;
  float* hits;
};

// Applies the soft cap to a pack of logits.
template <int V>
__device__ inline void cap(float (&z)[V], float softcap) {
#pragma unroll
  for (int j = 0; j < V; ++j) z[j] = soft_cap_of(z[j], softcap);
}

// to_gradient of soft-capped logits of a pack, times the cap's derivative.
template <int V>
__device__ inline void to_capped_gradient(float (&z)[V], int c, int valid, int hot, float base, float factor,
                                          float scale, float softcap) {
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const float part = tanhf(z[j] / softcap), p = exp_down(softcap * part - base) * factor;
    z[j] = c + j < valid ? (c + j == hot ? p - scale : p) * (1.0f - part * part) : 0.0f;
  }
}

// Packs first, first + kThreads, ... below `end` of a row that begins at z.
template <int V, class T, class F>
__device__ inline void each_pack(const T* z, int first, int end, F f) {
  for (int c = (first + static_cast<int>(threadIdx.x)) * V; c < end; c += kThreads * V) {
    float x[V];
    load<V>(z + c, x);
    f(c, x);
  }
}

// A thread processes the packs that it has copied itself, so no barrier separates copy and use. All copies are in
// flight at once and consumed in four parts as they arrive. The last rows come first: the GEMM has written them last,
// so some are still in L2.
template <int V, bool Capped, class T>
__global__ void __launch_bounds__(kThreads, kKeeping) one_pass_kernel(const Rows<T> p) {
  extern __shared__ float4 memory[];
  __shared__ MaxSum warp[kWarps];
  T* kept = reinterpret_cast<T*>(memory);
  const int64_t row = static_cast<int64_t>(gridDim.x) - 1 - blockIdx.x;
  const T* z = p.logits + row * p.cols;
  const int target = p.targets[row];
  const float scale = p.dlogits != nullptr ? p.seed[0] : 0.0f;  // loaded here, together with the target
  if (target < 0) {
    if (threadIdx.x == 0) p.loss[row] = 0;
    if (threadIdx.x == 0 && p.hits != nullptr) p.hits[row] = 0;
    if (p.dlogits == nullptr) return;
    float nothing[V] = {};
    for (int c = static_cast<int>(threadIdx.x) * V; c < p.cols; c += kThreads * V)
      store<V>(p.dlogits + row * p.cols + c, nothing);
    return;
  }
  constexpr int kParts = 4;
  const int rounds = (p.kept / V + kThreads - 1) / kThreads;
  if constexpr (V > 1) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int end = min(p.kept, rounds * (part + 1) / kParts * kThreads * V);
      for (int c = (rounds * part / kParts * kThreads + static_cast<int>(threadIdx.x)) * V; c < end; c += kThreads * V)
        copy_async16(kept + c, z + c);
      commit_copies();
    }
  }
  const int hot = target < p.valid ? target : -1;
  float z_target = threadIdx.x == 0 && hot >= 0 ? to_float(z[hot]) : 0.0f;  // before any thread writes
  if constexpr (Capped) z_target = soft_cap_of(z_target, p.softcap);
  MaxSum s{-INFINITY, 0};
  const auto add = [&](int c, float(&x)[V]) {
    if constexpr (Capped) cap(x, p.softcap);
    take(s, x, c, p.valid);
  };
  each_pack<V>(z, p.kept / V, p.valid, add);
  if constexpr (V > 1) {
    const auto part_of = [&](int part) {
      each_pack<V>(kept, rounds * part / kParts * kThreads, min(p.kept, rounds * (part + 1) / kParts * kThreads * V),
                   add);
    };
    wait_copies<3>(), part_of(0);
    wait_copies<2>(), part_of(1);
    wait_copies<1>(), part_of(2);
    wait_copies<0>(), part_of(3);
  }
  s = block_merge(s, warp);
  const float lse = logf(s.sum) + s.max;
  if (threadIdx.x == 0) p.loss[row] = loss_of(lse, z_target, p.z_loss);
  if (threadIdx.x == 0 && p.hits != nullptr) p.hits[row] = z_target >= s.max ? 1.0f : 0.0f;
  if (p.dlogits == nullptr) return;
  const float factor = softmax_factor(lse, p.z_loss) * scale / s.sum, base = base_of(s.max);
  T* d = p.dlogits + row * p.cols;
  const auto put = [&](int c, float(&x)[V]) {
    if constexpr (Capped)
      to_capped_gradient(x, c, p.valid, hot, base, factor, scale, p.softcap);
    else
      to_gradient(x, c, p.valid, hot, base, factor, scale);
    store<V>(d + c, x);
  };
  if constexpr (V > 1) each_pack<V>(kept, 0, p.kept, put);
  each_pack<V>(z, p.kept / V, p.cols, put);
}

template <int V, bool Capped, class T>
__global__ void __launch_bounds__(kThreads, kStreaming)
    stats_kernel(const T* logits, const int32_t* targets, float* stats, int cols, int valid, int64_t first_col,
                 float softcap) {
  __shared__ MaxSum warp[kWarps];
  const int64_t row = static_cast<int64_t>(gridDim.x) - 1 - blockIdx.x;
  const T* z = logits + row * cols;
  MaxSum s{-INFINITY, 0};
  each_pack<V>(z, 0, valid, [&](int c, float(&x)[V]) {
    if constexpr (Capped) cap(x, softcap);
    take(s, x, c, valid);
  });
  s = block_merge(s, warp);
  if (threadIdx.x != 0) return;
  const int64_t t = targets[row] < 0 ? -1 : targets[row] - first_col;
  stats[row * 3] = s.max;
  stats[row * 3 + 1] = s.sum;
  float hot = t >= 0 && t < valid ? to_float(z[t]) : 0.0f;
  if constexpr (Capped) hot = soft_cap_of(hot, softcap);
  stats[row * 3 + 2] = hot;
}

// Each thread combines the statistics of all ranks itself: a few broadcast loads, in rank order. stats: [parts,
// gridDim.x, 3].
template <int V, bool Capped, class T>
__global__ void __launch_bounds__(kThreads, Capped ? kKeeping : kStreaming)
    grad_kernel(const Rows<T> p, const float* stats, int64_t first_col, int parts) {
  const int64_t row = blockIdx.x, n = gridDim.x;
  const int32_t target = p.targets[row];
  float top = -INFINITY, sum = 0, z_target = 0;
  for (int64_t part = 0; part < parts; ++part) top = fmaxf(top, stats[(part * n + row) * 3]);
  const float base = base_of(top);
  for (int64_t part = 0; part < parts; ++part) {
    const float* s = stats + (part * n + row) * 3;
    sum += s[1] * exp_down(s[0] - base);
    z_target += s[2];
  }
  const float lse = logf(sum) + top;
  if (threadIdx.x == 0 && p.loss != nullptr) p.loss[row] = target < 0 ? 0.0f : loss_of(lse, z_target, p.z_loss);
  if (threadIdx.x == 0 && p.hits != nullptr) p.hits[row] = target >= 0 && z_target >= top ? 1.0f : 0.0f;
  if (p.dlogits == nullptr) return;
  const float scale = p.seed[0], factor = softmax_factor(lse, p.z_loss) * scale / sum;
  const int64_t column = target - first_col;
  const int hot = column >= 0 && column < p.valid ? static_cast<int>(column) : -1;
  const int valid = target < 0 ? 0 : p.valid;
  T* d = p.dlogits + row * p.cols;
  each_pack<V>(p.logits + row * p.cols, 0, p.cols, [&](int c, float(&x)[V]) {
    if constexpr (Capped)
      to_capped_gradient(x, c, valid, hot, base, factor, scale, p.softcap);
    else
      to_gradient(x, c, valid, hot, base, factor, scale);
    store<V>(d + c, x);
  });
}

// Calls f(std::integral_constant<int, V>): 16-byte packs where rows and addresses allow, otherwise single elements.
template <class T, class F>
void by_pack(int64_t cols, std::initializer_list<const void*> pointers, float softcap, F&& f) {
  GT_CHECK(softcap >= 0, "cross-entropy with softcap ", softcap);
  const auto capped_or_not = [&](auto pack) {
    return softcap > 0 ? f(pack, std::true_type{}) : f(pack, std::false_type{});
  };
  if (cols % kPack<T> == 0 && aligned16(pointers)) return capped_or_not(std::integral_constant<int, kPack<T>>{});
  capped_or_not(std::integral_constant<int, 1>{});
}

// Returns the columns of logits [n, columns] after checking the shapes.
template <class Args>
int64_t columns_of(const char* op, const Args& a, int64_t n) {
  const int64_t cols = a.logits.numel() / n;
  GT_CHECK(cols * n == a.logits.numel() && cols < (int64_t{1} << 30), op, ": logits ", to_string(a.logits.shape),
           " for ", n, " targets");
  require_dtype(op, "targets", a.targets, DType::kI32);
  return cols;
}

template <class Args>
void check_results(const char* op, const Args& a, int64_t n) {
  GT_CHECK(!a.dlogits || (a.seed && a.dlogits.numel() == a.logits.numel()), op,
           ": dlogits needs seed and the shape of logits");
  GT_CHECK(a.loss.numel() == n, op, ": loss ", to_string(a.loss.shape), " for ", n, " targets");
  require_dtype(op, "loss", a.loss, DType::kF32);
  GT_CHECK(!a.hits || a.hits.numel() == n, op, ": hits ", to_string(a.hits.shape), " for ", n, " targets");
  if (a.hits) require_dtype(op, "hits", a.hits, DType::kF32);
  if (a.dlogits) require_dtype(op, "dlogits", a.dlogits, a.logits.dtype);
  if (a.dlogits) require_dtype(op, "seed", a.seed, DType::kF32);
}

template <class T, class Args>
Rows<T> rows_of(const Args& a, int64_t cols, int64_t valid) {
  return {a.logits.template as<T>(),
          a.targets.template as<int32_t>(),
          a.seed.template as<float>(),
          a.loss.template as<float>(),
          a.dlogits.template as<T>(),
          static_cast<int>(cols),
          static_cast<int>(valid),
          0,
          a.softcap,
          a.z_loss,
          a.hits.template as<float>()};
}

// Bytes of a row that a block can keep in shared memory on this device.
int row_bytes_limit(const Context& c) {
  return std::max(0, c.shared_per_block - static_cast<int>(sizeof(MaxSum) * kWarps)) / 16 * 16;
}

// Allows the kernel a block's maximum of shared memory, and the largest shared memory carveout for two blocks.
template <class T>
void raise_limit(const Context& c) {
  using K = void (*)(Rows<T>);
  for (const K k :
       {static_cast<K>(one_pass_kernel<kPack<T>, false, T>), static_cast<K>(one_pass_kernel<kPack<T>, true, T>)}) {
    const auto* kernel = reinterpret_cast<const void*>(k);
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, row_bytes_limit(c)),
          "cross_entropy");
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
          "cross_entropy");
  }
}

}  // namespace

void cross_entropy(const CrossEntropy& a, Stream s) {
  const int64_t n = a.targets.numel();
  if (n == 0) return;
  Context& c = enter(s, "cross_entropy");
  const int64_t cols = columns_of("cross_entropy", a, n);
  check_results("cross_entropy", a, n);
  if (!c.loss_ready) {
    raise_limit<float>(c), raise_limit<__nv_bfloat16>(c), raise_limit<__half>(c);
    c.loss_ready = true;
  }
  by_dtype("cross_entropy", "logits", a.logits.dtype, [&](auto t) {
    using T = decltype(t);
    Rows<T> rows = rows_of<T>(a, cols, std::clamp<int64_t>(a.vocab, 0, cols));
    by_pack<T>(cols, {a.logits.data, a.dlogits.data}, a.softcap, [&](auto pack, auto capped) {
      constexpr int kV = decltype(pack)::value;
      const int fits = row_bytes_limit(c) / static_cast<int>(sizeof(T));
      if (kV > 1) rows.kept = std::min(fits, static_cast<int>(ceil_div(rows.valid, kV)) * kV);
      one_pass_kernel<kV, decltype(capped)::value, T>
          <<<static_cast<unsigned>(n), kThreads, rows.kept * sizeof(T), c.stream>>>(rows);
    });
  });
  leave(c, "cross_entropy");
}

void cross_entropy_stats(const CrossEntropyStats& a, Stream s) {
  const int64_t n = a.targets.numel();
  if (n == 0) return;
  Context& c = enter(s, "cross_entropy_stats");
  const int64_t cols = columns_of("cross_entropy_stats", a, n);
  GT_CHECK(a.stats.numel() == 3 * n, "cross_entropy_stats: stats ", to_string(a.stats.shape), " for ", n, " targets");
  require_dtype("cross_entropy_stats", "stats", a.stats, DType::kF32);
  const auto valid = static_cast<int>(std::clamp<int64_t>(a.vocab - a.first_col, 0, cols));
  by_dtype("cross_entropy_stats", "logits", a.logits.dtype, [&](auto t) {
    using T = decltype(t);
    by_pack<T>(cols, {a.logits.data}, a.softcap, [&](auto pack, auto capped) {
      stats_kernel<decltype(pack)::value, decltype(capped)::value, T>
          <<<static_cast<unsigned>(n), kThreads, 0, c.stream>>>(a.logits.as<T>(), a.targets.as<int32_t>(),
                                                                a.stats.as<float>(), static_cast<int>(cols), valid,
                                                                a.first_col, a.softcap);
    });
  });
  leave(c, "cross_entropy_stats");
}

void cross_entropy_grad(const CrossEntropyGrad& a, Stream s) {
  const int64_t n = a.targets.numel();
  if (n == 0) return;
  Context& c = enter(s, "cross_entropy_grad");
  const int64_t cols = columns_of("cross_entropy_grad", a, n);
  check_results("cross_entropy_grad", a, n);
  GT_CHECK(a.stats.numel() == a.parts * n * 3, "cross_entropy_grad: stats ", to_string(a.stats.shape), " for ", a.parts,
           " parts of ", n, " rows");
  require_dtype("cross_entropy_grad", "stats", a.stats, DType::kF32);
  const int64_t valid = std::clamp<int64_t>(a.vocab - a.first_col, 0, cols);
  by_dtype("cross_entropy_grad", "logits", a.logits.dtype, [&](auto t) {
    using T = decltype(t);
    const Rows<T> rows = rows_of<T>(a, cols, valid);
    by_pack<T>(cols, {a.logits.data, a.dlogits.data}, a.softcap, [&](auto pack, auto capped) {
      grad_kernel<decltype(pack)::value, decltype(capped)::value, T>
          <<<static_cast<unsigned>(n), kThreads, 0, c.stream>>>(rows, a.stats.as<float>(), a.first_col,
                                                                static_cast<int>(a.parts));
    });
  });
  leave(c, "cross_entropy_grad");
}

}  // namespace gt::cuda
