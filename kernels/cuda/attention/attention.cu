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

// [rows, head_dim] matrix of one head: element (0, 0) at `data`, rows `pitch` elements apart.
struct Rows {
  const void* data;
  int64_t pitch;
  DType type;
  bool wide;  // four channels can be moved at once

  __device__ Rows from(int64_t offset) const {
    const int64_t size = type == DType::kF32 ? 4 : 2;
    return {static_cast<const char*>(data) + offset * size, pitch, type, wide};
  }
};

struct Problem {
  Rows qkv, out, dout, dqkv;
  float *lse, *delta;  // [batch, heads, seq]
  int64_t batch, seq, heads, kv_heads;
  int dim, tiles;
  float scale;
  HeadDrop drop;
  bool drops;                // whether `drop` does
  int window;                // seq where it is unlimited
  float softcap;             // 0: none
  bool full;                 // bidirectional
  const int32_t* lengths;    // of it, [batch]; nullptr: seq
  const int32_t* positions;  // [batch, seq] of each token in its document; nullptr: one document

  // Keys of a sequence that exist for its queries.
  __device__ int64_t keys(int64_t sequence) const { return lengths != nullptr ? lengths[sequence] : seq; }
  __device__ float factor(int64_t sequence, int64_t head, int64_t query, int64_t key) const {
    if (!drops) return 1;
    const int64_t row = (drop.first_head + head) * seq + query;
    return drop_factor(drop.mask, first_sample(drop.mask) + sequence, row * seq + key);
  }
  // How many keys before its own a query sees: those in its window and in its document.
  __device__ int reach(int64_t sequence, int64_t query) const {
    if (positions == nullptr || query >= seq) return window - 1;
    return min(window - 1, positions[sequence * seq + query]);
  }
  // reach: of the query; limit: keys() of the sequence.
  __device__ bool sees(int64_t query, int64_t key, int reach, int64_t limit) const {
    return full ? key < limit : key <= query && query - key <= reach;
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

// Tiles of T keys that the queries of a tile read, first and last; and of queries that read a tile of keys.
template <int T>
__device__ inline int first_key_tile(const Problem& p, int64_t sequence, int tile) {
  return max(0, tile * T - p.reach(sequence, int64_t{tile} * T)) / T;
}
template <int T>
__device__ inline int last_key_tile(const Problem& p, int tile, int64_t limit) {
  return p.full ? static_cast<int>((limit - 1) / T) : tile;
}
template <int T>
__device__ inline int first_query_tile(const Problem& p, int tile, int64_t limit) {
  return !p.full ? tile : int64_t{tile} * T < limit ? 0 : p.tiles;
}
template <int T>
__device__ inline int last_query_tile(const Problem& p, int64_t sequence, int tile) {
  if (p.full) return p.tiles - 1;
  int last = min(p.tiles - 1, (tile * T + T - 1 + p.window - 1) / T);
  if (p.positions == nullptr) return last;
  const int end = tile * T + T;  // documents begin in ascending order
  while (last > tile && last * T - p.reach(sequence, int64_t{last} * T) >= end) --last;
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
  const int64_t which = blockIdx.x / p.tiles, h = which % p.heads, batch = which / p.heads;
  const int tile = p.tiles - 1 - blockIdx.x % p.tiles;  // longest first
  const int64_t kv = h / (p.heads / p.kv_heads), start = batch * p.seq, row0 = int64_t{tile} * T;
  const int y = threadIdx.x / 16, x = threadIdx.x % 16;
  const float scale = p.scale * kLog2e;

  load_tile<T, DP>(q, p.qkv.from(start * p.qkv.pitch + h * p.dim), row0, p.seq, p.dim);
  float top[R], total[R], acc[R][N] = {};
#pragma unroll
  for (int i = 0; i < R; ++i) {
    top[i] = -INFINITY;
    total[i] = 0;
  }
  const int64_t limit = General ? p.keys(batch) : 0;
  const int last = General ? last_key_tile<T>(p, tile, limit) : tile;
  for (int kt = General ? first_key_tile<T>(p, batch, tile) : 0; kt <= last; ++kt) {
    __syncthreads();
    load_tile<T, DP>(k, p.qkv.from(start * p.qkv.pitch + (p.heads + kv) * p.dim), int64_t{kt} * T, p.seq, p.dim);
    load_tile<T, DP>(v, p.qkv.from(start * p.qkv.pitch + (p.heads + p.kv_heads + kv) * p.dim), int64_t{kt} * T, p.seq,
                     p.dim);
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
    const float inverse = 1.0f / total[i];
#pragma unroll
    for (int c = 0; c < N; ++c) acc[i][c] *= inverse;
    if (x == 0 && row < p.seq) p.lse[(batch * p.heads + h) * p.seq + row] = (top[i] + log2f(total[i])) * kLn2;
  }
  store_tile<R, N>(p.out.from(start * p.out.pitch + h * p.dim), row0, p.seq, p.dim, acc);
}

// delta = rowsum(dout * out): a warp a (token, head).
template <class E>
__global__ void __launch_bounds__(kThreads) delta_kernel(Problem p) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (i >= p.batch * p.seq * p.heads) return;
  const int64_t token = i / p.heads, h = i % p.heads;
  const auto* out = static_cast<const E*>(p.out.data) + token * p.out.pitch + h * p.dim;
  const auto* dout = static_cast<const E*>(p.dout.data) + token * p.dout.pitch + h * p.dim;
  float s = 0;
  for (int c = threadIdx.x % 32; c < p.dim; c += 32) s += to_float(out[c]) * to_float(dout[c]);
  s = warp_sum(s);
  if (threadIdx.x % 32 == 0) p.delta[(token / p.seq * p.heads + h) * p.seq + token % p.seq] = s;
}

// By key tile. Scores are computed transposed (rows are keys, columns queries), so that p^T and ds^T are row operands.
template <int T, int DP, bool General>
__global__ void __launch_bounds__(kThreads, kBlocks<DP, General>) grad_kv_kernel(Problem p) {
  constexpr int R = T / 16, N = DP / 16, kSize = T * (DP + 4);
  extern __shared__ float4 memory[];
  float* k = reinterpret_cast<float*>(memory);
  float *v = k + kSize, *q = v + kSize, *dout = q + kSize, *w = dout + kSize, *lse = w + T * (T + 4), *delta = lse + T;
  const int64_t which = blockIdx.x / p.tiles, kv = which % p.kv_heads, batch = which / p.kv_heads;
  const int tile = blockIdx.x % p.tiles;  // the first keys are read by the most queries
  const int64_t start = batch * p.seq, row0 = int64_t{tile} * T, group = p.heads / p.kv_heads;
  const int y = threadIdx.x / 16, x = threadIdx.x % 16;
  const float scale = p.scale * kLog2e;

  const int64_t at_k = start * p.qkv.pitch + (p.heads + kv) * p.dim, at_v = at_k + p.kv_heads * p.dim;
  load_tile<T, DP>(k, p.qkv.from(at_k), row0, p.seq, p.dim);
  load_tile<T, DP>(v, p.qkv.from(at_v), row0, p.seq, p.dim);
  float dk[R][N] = {}, dv[R][N] = {};
  const int64_t limit = General ? p.keys(batch) : 0;
  for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
    const int last = General ? last_query_tile<T>(p, batch, tile) : p.tiles - 1;
    for (int qt = General ? first_query_tile<T>(p, tile, limit) : tile; qt <= last; ++qt) {
      const int64_t query0 = int64_t{qt} * T;
      __syncthreads();
      load_tile<T, DP>(q, p.qkv.from(start * p.qkv.pitch + h * p.dim), query0, p.seq, p.dim);
      load_tile<T, DP>(dout, p.dout.from(start * p.dout.pitch + h * p.dim), query0, p.seq, p.dim);
      if (threadIdx.x < T) {
        const bool live = query0 + threadIdx.x < p.seq;
        const int64_t at = (batch * p.heads + h) * p.seq + query0 + threadIdx.x;
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
            const bool attended = query < p.seq && p.sees(query, key, p.reach(batch, query), limit);
            s[i][j] = attended ? p.weight(s[i][j], lse[column]) : 0;
            ds[i][j] = s[i][j] * (ds[i][j] * f - delta[column]) * slope;  // delta, taken from the output, has f in it
            s[i][j] *= f;
          } else {
            s[i][j] = key <= query && query < p.seq ? exp2f(s[i][j] * scale - lse[column]) : 0;
            ds[i][j] = s[i][j] * (ds[i][j] - delta[column]) * p.scale;
          }
        }
      put_weights<T, R>(w, s);
      gemm_via_f32<T, R, DP>(w, dout, dv);
      put_weights<T, R>(w, ds);
      gemm_via_f32<T, R, DP>(w, q, dk);
    }
  }
  store_tile<R, N>(p.dqkv.from(at_k), row0, p.seq, p.dim, dk);
  store_tile<R, N>(p.dqkv.from(at_v), row0, p.seq, p.dim, dv);
}

// By query tile.
template <int T, int DP, bool General>
__global__ void __launch_bounds__(kThreads, kBlocks<DP, General>) grad_q_kernel(Problem p) {
  constexpr int R = T / 16, N = DP / 16, kSize = T * (DP + 4);
  extern __shared__ float4 memory[];
  float* q = reinterpret_cast<float*>(memory);
  float *dout = q + kSize, *k = dout + kSize, *v = k + kSize, *w = v + kSize;
  const int64_t which = blockIdx.x / p.tiles, h = which % p.heads, batch = which / p.heads;
  const int tile = p.tiles - 1 - blockIdx.x % p.tiles;
  const int64_t kv = h / (p.heads / p.kv_heads), start = batch * p.seq, row0 = int64_t{tile} * T;
  const int y = threadIdx.x / 16, x = threadIdx.x % 16;
  const float scale = p.scale * kLog2e;

  load_tile<T, DP>(q, p.qkv.from(start * p.qkv.pitch + h * p.dim), row0, p.seq, p.dim);
  load_tile<T, DP>(dout, p.dout.from(start * p.dout.pitch + h * p.dim), row0, p.seq, p.dim);
  float lse[R], delta[R], dq[R][N] = {};
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const int64_t row = row0 + y * R + i, at = (batch * p.heads + h) * p.seq + row;
    lse[i] = row < p.seq ? p.lse[at] * kLog2e : 0;
    delta[i] = row < p.seq ? p.delta[at] : 0;
  }
  const int64_t limit = General ? p.keys(batch) : 0;
  const int last = General ? last_key_tile<T>(p, tile, limit) : tile;
  for (int kt = General ? first_key_tile<T>(p, batch, tile) : 0; kt <= last; ++kt) {
    __syncthreads();
    load_tile<T, DP>(k, p.qkv.from(start * p.qkv.pitch + (p.heads + kv) * p.dim), int64_t{kt} * T, p.seq, p.dim);
    load_tile<T, DP>(v, p.qkv.from(start * p.qkv.pitch + (p.heads + p.kv_heads + kv) * p.dim), int64_t{kt} * T, p.seq,
                     p.dim);
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
          const bool attended = row < p.seq && p.sees(row, key, p.reach(batch, row), limit);
          const float weight = attended ? p.weight(s[i][j], lse[i]) : 0;
          ds[i][j] = weight * (ds[i][j] * p.factor(batch, h, row, key) - delta[i]) * p.slope(s[i][j]);
        } else {
          const float weight = key <= row && row < p.seq ? exp2f(s[i][j] * scale - lse[i]) : 0;
          ds[i][j] = weight * (ds[i][j] - delta[i]) * p.scale;
        }
      }
    put_weights<T, R>(w, ds);
    gemm_via_f32<T, R, DP>(w, k, dq);
  }
  store_tile<R, N>(p.dqkv.from(start * p.dqkv.pitch + h * p.dim), row0, p.seq, p.dim, dq);
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
  if (p.drops || p.window < p.seq || p.softcap > 0 || p.full || p.positions != nullptr) return f(std::true_type{});
  f(std::false_type{});
}

template <class Args>
Problem problem(const Args& a) {
  const int64_t pitch = (a.heads + 2 * a.kv_heads) * a.head_dim;
  const bool wide = a.head_dim % 4 == 0;
  const auto rows = [&](const Tensor& t, int64_t row_pitch) {
    return Rows{t.data, row_pitch, t.dtype, wide && aligned16({t.data})};
  };
  Problem p{};
  p.qkv = rows(a.qkv, pitch);
  p.out = rows(a.out, a.heads * a.head_dim);
  p.lse = a.lse.template as<float>();
  p.batch = a.batch, p.seq = a.seq, p.heads = a.heads, p.kv_heads = a.kv_heads;
  p.dim = static_cast<int>(a.head_dim), p.scale = a.scale;
  p.drop = a.drop, p.drops = static_cast<bool>(a.drop);
  p.window = static_cast<int>(a.window > 0 ? std::min(a.window, a.seq) : a.seq), p.softcap = a.softcap;
  p.full = a.full, p.lengths = a.lengths ? a.lengths.template as<int32_t>() : nullptr;
  p.positions = a.positions ? a.positions.template as<int32_t>() : nullptr;
  return p;
}

}  // namespace

void own_attention(const Attention& a, Stream s) {
  Context& c = enter(s, "attention");
  check_attention("attention", a);
  Problem p = problem(a);
  prepare_all(c);
  by_tiles("attention", a.head_dim, c.shared_per_block, [&](auto shape) {
    using S = decltype(shape);
    p.tiles = static_cast<int>(ceil_div(p.seq, S::kT));
    by_generality(p, [&](auto general) {
      attention_kernel<S::kT, S::kDP, decltype(general)::value>
          <<<static_cast<unsigned>(p.tiles * p.heads * p.batch), kThreads, S::kForward, c.stream>>>(p);
    });
  });
  leave(c, "attention");
}

void own_attention_grad(const AttentionGrad& a, Stream s) {
  Context& c = enter(s, "attention_grad");
  check_attention_grad(a);
  Problem p = problem(a);
  p.dout = {a.dout.data, p.out.pitch, a.dout.dtype, a.head_dim % 4 == 0 && aligned16({a.dout.data})};
  p.dqkv = {a.dqkv.data, p.qkv.pitch, a.dqkv.dtype, a.head_dim % 4 == 0 && aligned16({a.dqkv.data})};
  p.delta = reinterpret_cast<float*>(c.scratch(own_attention_scratch(a)));
  prepare_all(c);
  by_dtype("attention_grad", "qkv", a.qkv.dtype, [&](auto t) {
    using T = decltype(t);
    delta_kernel<T><<<static_cast<unsigned>(ceil_div(a.lse.numel() * 32, kThreads)), kThreads, 0, c.stream>>>(p);
  });
  by_tiles("attention_grad", a.head_dim, c.shared_per_block, [&](auto shape) {
    using S = decltype(shape);
    p.tiles = static_cast<int>(ceil_div(p.seq, S::kT));
    by_generality(p, [&](auto general) {
      constexpr bool kGeneral = decltype(general)::value;
      grad_kv_kernel<S::kT, S::kDP, kGeneral>
          <<<static_cast<unsigned>(p.tiles * p.kv_heads * p.batch), kThreads, S::kBackward, c.stream>>>(p);
      grad_q_kernel<S::kT, S::kDP, kGeneral>
          <<<static_cast<unsigned>(p.tiles * p.heads * p.batch), kThreads, S::kBackward, c.stream>>>(p);
    });
  });
  leave(c, "attention_grad");
}

}  // namespace gt::cuda
