// Our own attention by tiles, causal or bidirectional, in f32 arithmetic for every storage type: FlashAttention-2 (Dao
// 2023, arXiv 2307.08691) with a backward of two kernels, one by key tile (dk, dv) and one by query tile (dq): nothing
// is added atomically, so the bits repeat. 256 threads as a 16 x 16 grid; thread (y, x) owns rows y*R .. y*R+R-1 and
// columns x, x+16, ... of a tile of scores, and channels 4x .. 4x+3 of every 64 of a tile of outputs.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <type_traits>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"

namespace gt::cuda {

namespace {

constexpr int kThreads = 256;
// Kernels are compiled twice: for causal attention and nothing else, and (`General`) for calls with dropout, a window,
// a soft cap or bidirectional attention, which are checked at run time. Blocks a multiprocessor should hold. At
// head_dim 64 plain kernels hold two on sm_90 without a spilled register; sm_80 has too little shared memory
// for two, and code for sm_100 would spill.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
template <int DP, bool General>
constexpr int kBlocks = DP == 64 && !General ? 2 : 1;
#else
template <int DP, bool General>
constexpr int kBlocks = 1;
#endif
constexpr float kLn2 = 0.6931471805599453f;

// Matrix of heads, or of one: element (0, 0) at `data`, rows `pitch` elements apart.
struct Rows {
  const void* data;
  int64_t pitch;
  DType type;
  bool wide;  // four channels can be moved at once

  // Head `h` of those side by side in these rows, from row `row` on.
  __device__ Rows head(int64_t row, int64_t h, int dim) const {
    const int64_t size = type == DType::kF32 ? 4 : 2;
    return {static_cast<const char*>(data) + (row * pitch + h * dim) * size, pitch, type, wide};
  }
};

struct Problem {
  Rows q, k, v, out, dout, dq, dk, dv;
  float *lse, *delta;  // [batch, heads, queries]
  int64_t batch, queries, keys, heads, kv_heads;
  int dim, query_tiles, key_tiles;
  float scale;
  HeadDrop drop;
  bool drops;                      // whether `drop` does
  int64_t first_query, first_key;  // positions of query 0 and key 0
  int window;                      // longer than any sequence where it is unlimited
  float softcap;                   // 0: none
  bool full;                       // bidirectional
  const int32_t* lengths;          // of it, [batch]; nullptr: all keys
  const int32_t* documents;        // [batch, queries] of each query in its document; nullptr: one document

  // Position of a query, counted from key 0.
  __device__ int64_t at(int64_t query) const { return first_query - first_key + query; }
  // Keys of a sequence that exist for its queries.
  __device__ int64_t limit(int64_t sequence) const {
    return lengths != nullptr ? min(keys, max(int64_t{0}, lengths[sequence] - first_key)) : keys;
  }
  __device__ float factor(int64_t sequence, int64_t head, int64_t query, int64_t key) const {
    if (!drops) return 1;
    const int64_t row = (drop.first_head + head) * drop.seq + first_query + query;
    return drop_factor(drop.mask, first_sample(drop.mask) + sequence, row * drop.seq + first_key + key);
  }
  // How many keys before its own a query sees: those in its window and in its document.
  __device__ int reach(int64_t sequence, int64_t query) const {
    if (documents == nullptr || query >= queries) return window - 1;
    return min(window - 1, documents[sequence * queries + query]);
  }
  // reach: of the query; limit: of the sequence.
  __device__ bool sees(int64_t query, int64_t key, int reach, int64_t limit) const {
    return key < limit && (full || (key <= at(query) && at(query) - key <= reach));
  }
  // score: input of the softmax for a dot product of query and key, times log2 e. weight: 2^(score - lse). slope:
  // derivative of the score by that product, divided by log2 e.
  __device__ float score(float product) const {
    return softcap > 0 ? kLog2e * soft_cap_of(product * scale, softcap) : product * (scale * kLog2e);
  }
  __device__ float weight(float product, float lse) const {
    return softcap > 0 ? exp2f(score(product) - lse) : exp2f(product * (scale * kLog2e) - lse);
  }
  __device__ float slope(float product) const {
    if (softcap == 0) return scale;
    const float part = tanhf(product * scale / softcap);
    return scale * (1.0f - part * part);
  }
};

// Tiles of T keys that the queries of a tile read, first and last; and of queries that read a tile of keys. None: last
// precedes first.
template <int T>
__device__ inline int first_key_tile(const Problem& p, int64_t sequence, int tile) {
  const int64_t query = int64_t{tile} * T;
  return p.full ? 0 : static_cast<int>(max(int64_t{0}, p.at(query) - p.reach(sequence, query)) / T);
}
template <int T>
__device__ inline int last_key_tile(const Problem& p, int tile, int64_t limit) {
  const int64_t last = p.full ? limit - 1 : min(limit - 1, p.at(int64_t{tile} * T + T - 1));
  return last < 0 ? -1 : static_cast<int>(last / T);
}
template <int T>
__device__ inline int first_query_tile(const Problem& p, int tile, int64_t limit) {
  const int64_t key = int64_t{tile} * T;
  if (key >= limit) return p.query_tiles;
  return p.full ? 0 : static_cast<int>(max(int64_t{0}, key - p.at(0)) / T);
}
template <int T>
__device__ inline int last_query_tile(const Problem& p, int64_t sequence, int tile, int first) {
  if (p.full) return p.query_tiles - 1;
  const int64_t end = int64_t{tile} * T + T, query = end - 1 + p.window - 1 - p.at(0);
  int last = query < 0 ? -1 : static_cast<int>(min(int64_t{p.query_tiles} - 1, query / T));
  if (p.documents == nullptr) return last;
  // Documents begin in ascending order.
  while (last > first && p.at(int64_t{last} * T) - p.reach(sequence, int64_t{last} * T) >= end) --last;
  return last;
}

// Copies T rows from `row0` into shared memory, zero-padded to T x DP. The row pitch DP + 4 keeps 16-byte reads of 8
// consecutive rows in different banks.
template <int T, int DP, class E>
__device__ inline void load_as(float* to, const E* from, const Rows& r, int64_t row0, int64_t rows, int dim) {
  for (int i = threadIdx.x; i < T * DP / 4; i += kThreads) {
    const int row = i / (DP / 4), c = i % (DP / 4) * 4;
    float v[4] = {};
    if (row0 + row < rows && c < dim) {
      const E* p = from + (row0 + row) * r.pitch + c;
      if (r.wide) {
        load<4>(p, v);
      } else {
        for (int j = 0; j < 4; ++j)
          if (c + j < dim) v[j] = to_float(p[j]);
      }
    }
    *reinterpret_cast<float4*>(to + row * (DP + 4) + c) = make_float4(v[0], v[1], v[2], v[3]);
  }
}

template <int T, int DP>
__device__ void load_tile(float* to, const Rows& r, int64_t row0, int64_t rows, int dim) {
  if (r.type == DType::kF32)
    load_as<T, DP>(to, static_cast<const float*>(r.data), r, row0, rows, dim);
  else if (r.type == DType::kBF16)
    load_as<T, DP>(to, static_cast<const __nv_bfloat16*>(r.data), r, row0, rows, dim);
  else
    load_as<T, DP>(to, static_cast<const __half*>(r.data), r, row0, rows, dim);
}

template <int R, int N, class E>
__device__ inline void store_as(E* to, const Rows& r, int64_t row0, int64_t rows, int dim, const float (&acc)[R][N]) {
  const int y = threadIdx.x / 16, x = threadIdx.x % 16;
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const int64_t row = row0 + y * R + i;
    if (row >= rows) continue;
#pragma unroll
    for (int b = 0; b < N / 4; ++b) {
      const int c = b * 64 + x * 4;
      E* p = to + row * r.pitch + c;
      if (r.wide && c < dim) {
        const float v[4] = {acc[i][b * 4], acc[i][b * 4 + 1], acc[i][b * 4 + 2], acc[i][b * 4 + 3]};
        store<4>(p, v);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (c + j < dim) p[j] = from_float<E>(acc[i][b * 4 + j]);
      }
    }
  }
}

template <int R, int N>
__device__ void store_tile(const Rows& r, int64_t row0, int64_t rows, int dim, const float (&acc)[R][N]) {
  void* data = const_cast<void*>(r.data);
  if (r.type == DType::kF32)
    store_as<R, N>(static_cast<float*>(data), r, row0, rows, dim, acc);
  else if (r.type == DType::kBF16)
    store_as<R, N>(static_cast<__nv_bfloat16*>(data), r, row0, rows, dim, acc);
  else
    store_as<R, N>(static_cast<__half*>(data), r, row0, rows, dim, acc);
}

// c = a b^T over DP channels: rows y*R.. of a, rows x, x+16, .. of b.
template <int R, int DP>
__device__ inline void times_transposed(const float* a, const float* b, float (&c)[R][R]) {
  const int y = threadIdx.x / 16, x = threadIdx.x % 16;
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int j = 0; j < R; ++j) c[i][j] = 0;
#pragma unroll 2
  for (int d = 0; d < DP; d += 4) {
    float4 p[R], q[R];
#pragma unroll
    for (int i = 0; i < R; ++i) p[i] = *reinterpret_cast<const float4*>(a + (y * R + i) * (DP + 4) + d);
#pragma unroll
    for (int j = 0; j < R; ++j) q[j] = *reinterpret_cast<const float4*>(b + (x + 16 * j) * (DP + 4) + d);
#pragma unroll
    for (int i = 0; i < R; ++i)
#pragma unroll
      for (int j = 0; j < R; ++j) c[i][j] += p[i].x * q[j].x + p[i].y * q[j].y + p[i].z * q[j].z + p[i].w * q[j].w;
  }
}

// acc += w v: w [T, T] of pitch T + 4, v [T, DP].
template <int T, int R, int DP>
__device__ inline void gemm_via_f32(const float* w, const float* v, float (&acc)[R][DP / 16]) {
  const int y = threadIdx.x / 16, x = threadIdx.x % 16;
#pragma unroll 1
  for (int n = 0; n < T; n += 4) {
    float p[R][4];
#pragma unroll
    for (int i = 0; i < R; ++i)
      *reinterpret_cast<float4*>(p[i]) = *reinterpret_cast<const float4*>(w + (y * R + i) * (T + 4) + n);
#pragma unroll
    for (int t = 0; t < 4; ++t)
#pragma unroll
      for (int b = 0; b < DP / 64; ++b) {
        const float4 u = *reinterpret_cast<const float4*>(v + (n + t) * (DP + 4) + b * 64 + x * 4);
#pragma unroll
        for (int i = 0; i < R; ++i) {
          acc[i][b * 4] += p[i][t] * u.x;
          acc[i][b * 4 + 1] += p[i][t] * u.y;
          acc[i][b * 4 + 2] += p[i][t] * u.z;
          acc[i][b * 4 + 3] += p[i][t] * u.w;
        }
      }
  }
}

// A thread's share of a tile of weights into shared memory, for gemm_via_f32. The 16 threads that share rows of `w` are
// in one warp, so a warp barrier orders writes and reads.
template <int T, int R>
__device__ inline void put_weights(float* w, const float (&p)[R][R]) {
  const int y = threadIdx.x / 16, x = threadIdx.x % 16;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int j = 0; j < R; ++j) w[(y * R + i) * (T + 4) + x + 16 * j] = p[i][j];
  __syncwarp();
}

// Reduction over the 16 threads that share rows.
template <class F>
__device__ inline float across_row(float v, F f) {
#pragma unroll
  for (int m = 8; m > 0; m >>= 1) v = f(v, __shfl_xor_sync(kAllLanes, v, m));
  return v;
}

template <int T, int DP, bool General>
__global__ void __launch_bounds__(kThreads, kBlocks<DP, General>) attention_kernel(Problem p) {
  constexpr int R = T / 16, N = DP / 16;
  extern __shared__ float4 memory[];
  float* q = reinterpret_cast<float*>(memory);
  float *k = q + T * (DP + 4), *v = k + T * (DP + 4), *w = v + T * (DP + 4);
  const int64_t which = blockIdx.x / p.query_tiles, h = which % p.heads, batch = which / p.heads;
  const int tile = p.query_tiles - 1 - blockIdx.x % p.query_tiles;  // longest first
  const int64_t kv = h / (p.heads / p.kv_heads), row0 = int64_t{tile} * T;
  const int y = threadIdx.x / 16, x = threadIdx.x % 16;
  const float scale = p.scale * kLog2e;

  load_tile<T, DP>(q, p.q.head(batch * p.queries, h, p.dim), row0, p.queries, p.dim);
  float top[R], total[R], acc[R][N] = {};
#pragma unroll
  for (int i = 0; i < R; ++i) {
    top[i] = -INFINITY;
    total[i] = 0;
  }
  const int64_t limit = General ? p.limit(batch) : 0;
  const int last = General ? last_key_tile<T>(p, tile, limit) : tile;
  for (int kt = General ? first_key_tile<T>(p, batch, tile) : 0; kt <= last; ++kt) {
    __syncthreads();
    load_tile<T, DP>(k, p.k.head(batch * p.keys, kv, p.dim), int64_t{kt} * T, p.keys, p.dim);
    load_tile<T, DP>(v, p.v.head(batch * p.keys, kv, p.dim), int64_t{kt} * T, p.keys, p.dim);
    __syncthreads();
    float s[R][R];
    times_transposed<R, DP>(q, k, s);
#pragma unroll
    for (int i = 0; i < R; ++i) {
      const int64_t row = row0 + y * R + i;
      const int reach = General ? p.reach(batch, row) : 0;
      float most = -INFINITY;
#pragma unroll
      for (int j = 0; j < R; ++j) {
        const int64_t key = int64_t{kt} * T + x + 16 * j;
        if constexpr (General)
          s[i][j] = p.sees(row, key, reach, limit) ? p.score(s[i][j]) : -INFINITY;
        else
          s[i][j] = key <= row ? s[i][j] * scale : -INFINITY;
        most = fmaxf(most, s[i][j]);
      }
      // The first tile holds column 0, which every row of the plain kernel sees: from then on the maximum is finite.
      float now = fmaxf(top[i], across_row(most, [](float a, float b) { return fmaxf(a, b); }));
      if constexpr (General) now = fmaxf(now, -FLT_MAX);
      const float shrink = exp2f(top[i] - now);
      float sum = 0;
#pragma unroll
      for (int j = 0; j < R; ++j) {
        s[i][j] = exp2f(s[i][j] - now);
        sum += s[i][j];
        if constexpr (General) s[i][j] *= p.factor(batch, h, row, int64_t{kt} * T + x + 16 * j);
      }
      total[i] = total[i] * shrink + across_row(sum, [](float a, float b) { return a + b; });
      top[i] = now;
#pragma unroll
      for (int c = 0; c < N; ++c) acc[i][c] *= shrink;
    }
    put_weights<T, R>(w, s);
    gemm_via_f32<T, R, DP>(w, v, acc);
  }
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const int64_t row = row0 + y * R + i;
    const float inverse = total[i] > 0 ? 1.0f / total[i] : 0;  // 0: a query that saw no key
#pragma unroll
    for (int c = 0; c < N; ++c) acc[i][c] *= inverse;
    if (x == 0 && row < p.queries) p.lse[(batch * p.heads + h) * p.queries + row] = (top[i] + log2f(total[i])) * kLn2;
  }
  store_tile<R, N>(p.out.head(batch * p.queries, h, p.dim), row0, p.queries, p.dim, acc);
}

// delta = rowsum(dout * out): a warp a (token, head).
template <class E>
__global__ void __launch_bounds__(kThreads) delta_kernel(Problem p) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (i >= p.batch * p.queries * p.heads) return;
  const int64_t token = i / p.heads, h = i % p.heads;
  const auto* out = static_cast<const E*>(p.out.data) + token * p.out.pitch + h * p.dim;
  const auto* dout = static_cast<const E*>(p.dout.data) + token * p.dout.pitch + h * p.dim;
  float s = 0;
  for (int c = threadIdx.x % 32; c < p.dim; c += 32) s += to_float(out[c]) * to_float(dout[c]);
  s = warp_sum(s);
  if (threadIdx.x % 32 == 0) p.delta[(token / p.queries * p.heads + h) * p.queries + token % p.queries] = s;
}

// By key tile. Scores are computed transposed (rows are keys, columns queries), so that p^T and ds^T are row operands.
template <int T, int DP, bool General>
__global__ void __launch_bounds__(kThreads, kBlocks<DP, General>) grad_kv_kernel(Problem p) {
  constexpr int R = T / 16, N = DP / 16, kSize = T * (DP + 4);
  extern __shared__ float4 memory[];
  float* k = reinterpret_cast<float*>(memory);
  float *v = k + kSize, *q = v + kSize, *dout = q + kSize, *w = dout + kSize, *lse = w + T * (T + 4), *delta = lse + T;
  const int64_t which = blockIdx.x / p.key_tiles, kv = which % p.kv_heads, batch = which / p.kv_heads;
  const int tile = blockIdx.x % p.key_tiles;  // the first keys are read by the most queries
  const int64_t row0 = int64_t{tile} * T, group = p.heads / p.kv_heads;
  const int y = threadIdx.x / 16, x = threadIdx.x % 16;
  const float scale = p.scale * kLog2e;

  load_tile<T, DP>(k, p.k.head(batch * p.keys, kv, p.dim), row0, p.keys, p.dim);
  load_tile<T, DP>(v, p.v.head(batch * p.keys, kv, p.dim), row0, p.keys, p.dim);
  float dk[R][N] = {}, dv[R][N] = {};
  const int64_t limit = General ? p.limit(batch) : 0;
  for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
    const int first = General ? first_query_tile<T>(p, tile, limit) : tile;
    const int last = General ? last_query_tile<T>(p, batch, tile, first) : p.query_tiles - 1;
    for (int qt = first; qt <= last; ++qt) {
      const int64_t query0 = int64_t{qt} * T;
      __syncthreads();
      load_tile<T, DP>(q, p.q.head(batch * p.queries, h, p.dim), query0, p.queries, p.dim);
      load_tile<T, DP>(dout, p.dout.head(batch * p.queries, h, p.dim), query0, p.queries, p.dim);
      if (threadIdx.x < T) {
        const bool live = query0 + threadIdx.x < p.queries;
        const int64_t at = (batch * p.heads + h) * p.queries + query0 + threadIdx.x;
        lse[threadIdx.x] = live ? p.lse[at] * kLog2e : 0;
        delta[threadIdx.x] = live ? p.delta[at] : 0;
      }
      __syncthreads();
      float s[R][R], ds[R][R];
      times_transposed<R, DP>(k, q, s);
      times_transposed<R, DP>(v, dout, ds);
#pragma unroll
      for (int i = 0; i < R; ++i)
#pragma unroll
        for (int j = 0; j < R; ++j) {
          const int column = x + 16 * j;
          const int64_t key = row0 + y * R + i, query = query0 + column;
          if constexpr (General) {
            const float slope = p.slope(s[i][j]), f = p.factor(batch, h, query, key);
            const bool attended = query < p.queries && p.sees(query, key, p.reach(batch, query), limit);
            s[i][j] = attended ? p.weight(s[i][j], lse[column]) : 0;
            ds[i][j] = s[i][j] * (ds[i][j] * f - delta[column]) * slope;  // delta, taken from the output, has f in it
            s[i][j] *= f;
          } else {
            s[i][j] = key <= query && query < p.queries ? exp2f(s[i][j] * scale - lse[column]) : 0;
            ds[i][j] = s[i][j] * (ds[i][j] - delta[column]) * p.scale;
          }
        }
      put_weights<T, R>(w, s);
      gemm_via_f32<T, R, DP>(w, dout, dv);
      put_weights<T, R>(w, ds);
      gemm_via_f32<T, R, DP>(w, q, dk);
    }
  }
  store_tile<R, N>(p.dk.head(batch * p.keys, kv, p.dim), row0, p.keys, p.dim, dk);
  store_tile<R, N>(p.dv.head(batch * p.keys, kv, p.dim), row0, p.keys, p.dim, dv);
}

// By query tile.
template <int T, int DP, bool General>
__global__ void __launch_bounds__(kThreads, kBlocks<DP, General>) grad_q_kernel(Problem p) {
  constexpr int R = T / 16, N = DP / 16, kSize = T * (DP + 4);
  extern __shared__ float4 memory[];
  float* q = reinterpret_cast<float*>(memory);
  float *dout = q + kSize, *k = dout + kSize, *v = k + kSize, *w = v + kSize;
  const int64_t which = blockIdx.x / p.query_tiles, h = which % p.heads, batch = which / p.heads;
  const int tile = p.query_tiles - 1 - blockIdx.x % p.query_tiles;
  const int64_t kv = h / (p.heads / p.kv_heads), row0 = int64_t{tile} * T;
  const int y = threadIdx.x / 16, x = threadIdx.x % 16;
  const float scale = p.scale * kLog2e;

  load_tile<T, DP>(q, p.q.head(batch * p.queries, h, p.dim), row0, p.queries, p.dim);
  load_tile<T, DP>(dout, p.dout.head(batch * p.queries, h, p.dim), row0, p.queries, p.dim);
  float lse[R], delta[R], dq[R][N] = {};
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const int64_t row = row0 + y * R + i, at = (batch * p.heads + h) * p.queries + row;
    lse[i] = row < p.queries ? p.lse[at] * kLog2e : 0;
    delta[i] = row < p.queries ? p.delta[at] : 0;
  }
  const int64_t limit = General ? p.limit(batch) : 0;
  const int last = General ? last_key_tile<T>(p, tile, limit) : tile;
  for (int kt = General ? first_key_tile<T>(p, batch, tile) : 0; kt <= last; ++kt) {
    __syncthreads();
    load_tile<T, DP>(k, p.k.head(batch * p.keys, kv, p.dim), int64_t{kt} * T, p.keys, p.dim);
    load_tile<T, DP>(v, p.v.head(batch * p.keys, kv, p.dim), int64_t{kt} * T, p.keys, p.dim);
    __syncthreads();
    float s[R][R], ds[R][R];
    times_transposed<R, DP>(q, k, s);
    times_transposed<R, DP>(dout, v, ds);
#pragma unroll
    for (int i = 0; i < R; ++i)
#pragma unroll
      for (int j = 0; j < R; ++j) {
        const int64_t row = row0 + y * R + i, key = int64_t{kt} * T + x + 16 * j;
        if constexpr (General) {
          const bool attended = row < p.queries && p.sees(row, key, p.reach(batch, row), limit);
          const float weight = attended ? p.weight(s[i][j], lse[i]) : 0;
          ds[i][j] = weight * (ds[i][j] * p.factor(batch, h, row, key) - delta[i]) * p.slope(s[i][j]);
        } else {
          const float weight = key <= row && row < p.queries ? exp2f(s[i][j] * scale - lse[i]) : 0;
          ds[i][j] = weight * (ds[i][j] - delta[i]) * p.scale;
        }
      }
    put_weights<T, R>(w, ds);
    gemm_via_f32<T, R, DP>(w, k, dq);
  }
  store_tile<R, N>(p.dq.head(batch * p.queries, h, p.dim), row0, p.queries, p.dim, dq);
}

template <int T, int DP>
struct Tiles {
  static constexpr int kT = T, kDP = DP;
  static constexpr int kForward = 4 * (3 * T * (DP + 4) + T * (T + 4));  // bytes of shared memory
  static constexpr int kBackward = 4 * (4 * T * (DP + 4) + T * (T + 4) + 2 * T);
};

// The tile for a head dim: f(Tiles<T, DP>{}). Narrow tiles serve devices with little shared memory a block.
template <class F>
void by_tiles(const char* op, int64_t dim, int shared, F&& f) {
  GT_REQUIRE(dim >= 1 && dim <= 256, Exit::kUsage, "cuda ", op, ": head_dim ", dim, "; 1 to 256 are supported");
  if (dim <= 64) return f(Tiles<64, 64>{});
  if (dim <= 128) return shared >= Tiles<64, 128>::kBackward ? f(Tiles<64, 128>{}) : f(Tiles<32, 128>{});
  GT_REQUIRE((shared >= Tiles<32, 256>::kBackward), Exit::kUsage, "cuda ", op, ": head_dim ", dim, " needs ",
             (Tiles<32, 256>::kBackward), " bytes of shared memory a block, this device has ", shared);
  f(Tiles<32, 256>{});
}

void raise(const void* kernel, int bytes, const Context& c) {
  if (bytes <= c.shared_per_block)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "attention");
}

template <int T, int DP, bool General>
void prepare(const Context& c) {
  using K = void (*)(Problem);
  raise(reinterpret_cast<const void*>(static_cast<K>(attention_kernel<T, DP, General>)), Tiles<T, DP>::kForward, c);
  raise(reinterpret_cast<const void*>(static_cast<K>(grad_kv_kernel<T, DP, General>)), Tiles<T, DP>::kBackward, c);
  raise(reinterpret_cast<const void*>(static_cast<K>(grad_q_kernel<T, DP, General>)), Tiles<T, DP>::kBackward, c);
}

template <bool General>
void prepare_tiles(const Context& c) {
  prepare<64, 64, General>(c);
  prepare<64, 128, General>(c);
  prepare<32, 128, General>(c);
  prepare<32, 256, General>(c);
}

void prepare_all(Context& c) {
  if (c.attention_ready) return;
  prepare_tiles<false>(c);
  prepare_tiles<true>(c);
  c.attention_ready = true;
}

// Calls f(std::bool_constant) with whether a call needs the general kernels.
template <class F>
void by_generality(const Problem& p, F&& f) {
  const bool whole = p.first_query == p.first_key && p.queries == p.keys;
  if (!whole || p.drops || p.window < p.keys || p.softcap > 0 || p.full || p.documents != nullptr)
    return f(std::true_type{});
  f(std::false_type{});
}

Rows rows_of(const HeadView& v, int64_t dim) {
  const bool wide = dim % 4 == 0 && v.pitch() % 4 == 0 && aligned16({v.data()});
  return {v.data(), v.pitch(), v.rows.dtype, wide};
}

template <class Args>
Problem problem(const Args& args) {
  const AttentionSpec& a = args.spec;
  const auto heads = [&](const Tensor& t) {
    return rows_of({t.view({a.batch * a.queries, a.heads * a.head_dim})}, a.head_dim);
  };
  Problem p{};
  p.q = rows_of(args.q, a.head_dim), p.k = rows_of(args.k, a.head_dim), p.v = rows_of(args.v, a.head_dim);
  p.out = heads(args.out);
  if constexpr (requires { args.dq; }) {
    p.dout = heads(args.dout);
    p.dq = rows_of(args.dq, a.head_dim), p.dk = rows_of(args.dk, a.head_dim), p.dv = rows_of(args.dv, a.head_dim);
  }
  p.lse = args.lse.template as<float>();
  p.batch = a.batch, p.queries = a.queries, p.keys = a.keys, p.heads = a.heads, p.kv_heads = a.kv_heads;
  p.dim = static_cast<int>(a.head_dim), p.scale = a.scale;
  p.drop = a.drop, p.drops = static_cast<bool>(a.drop);
  p.first_query = a.first_query, p.first_key = a.first_key;
  const int64_t longest = std::max(a.first_query + a.queries, a.first_key + a.keys);
  p.window = static_cast<int>(a.window > 0 ? std::min(a.window, longest) : longest), p.softcap = a.softcap;
  p.full = a.full, p.lengths = a.lengths ? a.lengths.as<int32_t>() : nullptr;
  p.documents = a.documents ? a.documents.as<int32_t>() : nullptr;
  return p;
}

// Sets the tiles of a problem; returns the blocks of kernels by query tile and by key tile.
struct Blocks {
  unsigned by_query, by_key;
};
Blocks set_tiles(Problem& p, int t) {
  p.query_tiles = static_cast<int>(ceil_div(p.queries, t)), p.key_tiles = static_cast<int>(ceil_div(p.keys, t));
  return {static_cast<unsigned>(p.query_tiles * p.heads * p.batch),
          static_cast<unsigned>(p.key_tiles * p.kv_heads * p.batch)};
}

}  // namespace

void own_attention(const Attention& a, Stream s) {
  Context& c = enter(s, "attention");
  check_attention("attention", a);
  Problem p = problem(a);
  prepare_all(c);
  by_tiles("attention", a.spec.head_dim, c.shared_per_block, [&](auto shape) {
    using S = decltype(shape);
    const Blocks blocks = set_tiles(p, S::kT);
    if (blocks.by_query == 0) return;
    by_generality(p, [&](auto general) {
      attention_kernel<S::kT, S::kDP, decltype(general)::value>
          <<<blocks.by_query, kThreads, S::kForward, c.stream>>>(p);
    });
  });
  leave(c, "attention");
}

void own_attention_grad(const AttentionGrad& a, Stream s) {
  Context& c = enter(s, "attention_grad");
  check_attention_grad(a);
  Problem p = problem(a);
  p.delta = reinterpret_cast<float*>(c.scratch(own_attention_scratch(a)));
  prepare_all(c);
  by_dtype("attention_grad", "q", a.q.rows.dtype, [&](auto t) {
    using T = decltype(t);
    if (a.lse.numel() > 0)
      delta_kernel<T><<<static_cast<unsigned>(ceil_div(a.lse.numel() * 32, kThreads)), kThreads, 0, c.stream>>>(p);
  });
  by_tiles("attention_grad", a.spec.head_dim, c.shared_per_block, [&](auto shape) {
    using S = decltype(shape);
    const Blocks blocks = set_tiles(p, S::kT);
    by_generality(p, [&](auto general) {
      constexpr bool kGeneral = decltype(general)::value;
      if (blocks.by_key > 0)
        grad_kv_kernel<S::kT, S::kDP, kGeneral><<<blocks.by_key, kThreads, S::kBackward, c.stream>>>(p);
      if (blocks.by_query > 0)
        grad_q_kernel<S::kT, S::kDP, kGeneral><<<blocks.by_query, kThreads, S::kBackward, c.stream>>>(p);
    });
  });
  leave(c, "attention_grad");
}

}  // namespace gt::cuda
