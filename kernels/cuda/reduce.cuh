// Sums over a warp or a block in a fixed order: bitwise reproducible.
#pragma once
#include "kernels/cuda/context.h"

namespace gt::cuda {

constexpr unsigned kAllLanes = 0xffffffffu;

// Sums over a warp. Butterfly: addition commutes, so all lanes end with identical bits.
template <class T>
__device__ inline T warp_sum(T x) {
#pragma unroll
  for (int m = 16; m > 0; m >>= 1) x += __shfl_xor_sync(kAllLanes, x, m);
  return x;
}

// Sums over W whole warps that share a row (W == 1: one warp; otherwise the whole block). Every thread gets the result.
// `shared` holds W values; the next group_sum may reuse it.
template <int W, class T>
__device__ inline T group_sum(T x, T* shared) {
  x = warp_sum(x);
  if constexpr (W > 1) {
    __syncthreads();  // all threads have read the previous result
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = shared[0];
#pragma unroll
    for (int w = 1; w < W; ++w) x += shared[w];
  }
  return x;
}

// The same for two sums with one pair of barriers. `shared` holds 2 W values.
template <int W>
__device__ inline float2 group_sum(float2 x, float* shared) {
  x = make_float2(warp_sum(x.x), warp_sum(x.y));
  if constexpr (W > 1) {
    __syncthreads();  // all threads have read the previous result
    if (threadIdx.x % 32 == 0) {
      shared[threadIdx.x / 32] = x.x;
      shared[W + threadIdx.x / 32] = x.y;
    }
    __syncthreads();
    x = make_float2(shared[0], shared[W]);
#pragma unroll
    for (int w = 1; w < W; ++w) {
      x.x += shared[w];
      x.y += shared[W + w];
    }
  }
  return x;
}

// out[c] (+)= sum over p < parts of partial[p][c] for c < columns: in index order within 8 interleaved groups, then
// over the groups, in f32 and starting from out[c] when accumulating. Columns from `split` on go to out2[c - split],
// which has out's type (f32 or bf16); without out2 they are dropped.
void combine_partials(Context& c, const float* partial, int parts, int64_t columns, int64_t split, const Tensor& out,
                      const Tensor& out2, bool accumulate, const char* op);

}  // namespace gt::cuda
