// Shared by the backward kernels of layer norm and RMSNorm: arguments, one row in registers, column sums.
#pragma once
#include "kernels/cuda/norm/norm.cuh"
#include "kernels/cuda/table.h"

namespace gt::cuda {

// Kernel arguments of the backward pass; see LayerNormGrad in kernels/ops.h.
template <class T>
struct Backward {
  const T* x;
  Weights<T> gamma;
  const float *mean, *rstd;
  const T *dout, *dsum;
  T* dx;           // nullptr: not requested, gamma is not read
  float* partial;  // [blocks][2][cols]: dgamma, dbeta; nullptr: not requested
  int64_t n;
  int cols;
  float inverse_cols;
  bool accumulate;
  Branch<T> ddelta;  // may alias dout: each thread writes only elements that it alone has read
  RowDrop drop;
  float* bias_partial;  // [blocks][cols]: dbias; nullptr: not requested
  bool rms;             // no mean, no dbeta
  float gamma_offset;

  __device__ float mean_of(int64_t row) const { return rms ? 0.0f : mean[row]; }
  template <int V>
  __device__ void weights_at(int c, float (&w)[V]) const {
    gamma.template get<V>(c, w);
    if (!rms) return;
#pragma unroll
    for (int j = 0; j < V; ++j) w[j] += gamma_offset;
  }
};

// dbias partial sums: f32 [warps with separate rows][K][V][lanes of a row] in shared memory. The lane is the fastest
// index: no bank conflicts, and no thread reads another's values before the end.
template <int V, int K, int W>
constexpr int kBiasShareBytes = K* V*(W == 1 ? 128 : 32 * W) * static_cast<int>(sizeof(float));

// Returns this thread's partial sums, zeroed if dbias is requested.
template <int V, int K, int W, class T>
__device__ inline float* bias_share(const Backward<T>& p, float* shares, int lane) {
  float* mine = shares + (W == 1 ? threadIdx.x / 32 * (K * V * 32) : 0) + lane;
  if (p.bias_partial != nullptr) {
#pragma unroll
    for (int i = 0; i < K * V; ++i) mine[i * 32 * W] = 0;
  }
  return mine;
}

template <int V, int W>
__device__ inline void add_bias_share(const float (&v)[V], int k, float* mine) {
#pragma unroll
  for (int j = 0; j < V; ++j) mine[(k * V + j) * 32 * W] += v[j];
}

// Writes the block's dbias sums from shared memory; the four warps of a block are added in order (W == 1).
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

// Backward of one row of p.cols columns with W warps, K packs of V elements per lane. Writes dx and ddelta, adds to
// dgamma and dbeta, and passes delta's gradient pack by pack to emit(k, column, float (&)[V]), before rounding
// (Branch::round). `shared` holds W values.
template <int V, int K, int W, bool Drop, class T, class Emit>
__device__ inline void norm_grad_row(const Backward<T>& p, int64_t row, int lane, float* shared, float (&dgamma)[K][V],
                                     float (&dbeta)[K][V], Emit emit) {
  const int64_t at = row * p.cols;
  const float mean = p.mean_of(row), rstd = p.rstd[row];
  float x[K][V], g[K][V];
  // Issued with the other loads, and before them: the branch would otherwise wait for their values. After the sums,
  // each pack would wait for memory again, because dx may alias the next pack.
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
    p.weights_at(c, w);
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
  const float2 sums = group_sum<W>(make_float2(s, sx), shared);
  s = p.rms ? 0.0f : sums.x * p.inverse_cols;
  sx = sums.y * p.inverse_cols;
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
      round_all<T>(x[k]);
      drop<V>(p.drop, row, p.cols, c, x[k]);
      p.ddelta.template put<V>(at + c, x[k]);
    }
    emit(k, c, x[k]);
  }
}

// Static shared memory of put_weight_shares, bytes.
template <int V, int W>
constexpr int kWeightShareBytes = W == 1 ? 4 * 2 * 32 * V* static_cast<int>(sizeof(float)) : 0;

// Writes the block's partial sums of dgamma and dbeta.
template <int V, int K, int W, class T>
__device__ inline void put_weight_shares(const Backward<T>& p, const float (&dgamma)[K][V], const float (&dbeta)[K][V],
                                         int lane) {
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
  } else {  // four warps hold partial sums of the same columns: added in order
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

// Resident blocks per SM, by the registers of a lane's K packs of V elements; f32 loads in flight take twice as many,
// dropout masks some more. resources.txt records the actual figures.
template <int V, int K, int W, bool Drop>
constexpr int kResidentBlocks = W == 1           ? 3
                                : W == 4         ? (Drop ? 6 : 8)
                                : K* V > 8       ? 32 / (K * V)
                                : V == 4 || Drop ? 3
                                                 : 4;

// The number of partial sums depends on the shape alone, never on the device: one wave on an H200.
constexpr int64_t kMultiprocessors = 132;

// Per-block partial sums in stream scratch: [parts][2][cols] of dgamma and dbeta, [parts][cols] of dbias.
struct PartialSums {
  int64_t parts = 0;
  float* partials = nullptr;

  // Allocates `into` parts and points p at the requested ones.
  template <class T>
  void divide(const LayerNormGrad& a, int64_t into, Backward<T>& p, Context& c) {
    parts = into;
    partials = reinterpret_cast<float*>(c.scratch(parts * 3 * p.cols * static_cast<int64_t>(sizeof(float))));
    if (a.dgamma) p.partial = partials;
    if (a.dbias) p.bias_partial = partials + parts * 2 * p.cols;
  }
};

// Backward with delta's gradient quantized to FP8, or its amax observed, in the same pass. T: bf16 or f16. Returns
// false, with nothing queued, when no kernel supports this shape or alignment.
template <class T>
bool norm_grad_fp8(const LayerNormGrad&, const Backward<T>&, Context&, PartialSums&);

}  // namespace gt::cuda
