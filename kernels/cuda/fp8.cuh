// FP8 on the device: conversion from f32, 4 x 4 byte transpose, wide stores, block amax.
#pragma once
#include <cuda_fp8.h>

#include "kernels/core/fp8.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"

namespace gt::cuda {

// Quantizes two adjacent values, the first to the low byte.
template <DType F>
__device__ inline uint32_t quantize_two(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, F == DType::kF8E5M2 ? __NV_E5M2 : __NV_E4M3);
#else
  return fp8_encode(low, fp8_format(F)) | uint32_t{fp8_encode(high, fp8_format(F))} << 8;
#endif
}

// Quantizes V adjacent values times scale. Requires: V is a multiple of 4.
template <DType F, int V>
__device__ inline void quantize(const float (&v)[V], float scale, uint32_t (&words)[V / 4]) {
#pragma unroll
  for (int i = 0; i < V; i += 4)
    words[i / 4] = quantize_two<F>(v[i] * scale, v[i + 1] * scale) | quantize_two<F>(v[i + 2] * scale, v[i + 3] * scale)
                                                                         << 16;
}

// Transposes four rows of four FP8 values: first column in the low byte before, first row in the low byte after.
__device__ inline void transpose(uint32_t (&w)[4]) {
#ifdef __CUDA_ARCH__
  const uint32_t a = __byte_perm(w[0], w[1], 0x5140), b = __byte_perm(w[2], w[3], 0x5140),
                 c = __byte_perm(w[0], w[1], 0x7362), d = __byte_perm(w[2], w[3], 0x7362);
  w[0] = __byte_perm(a, b, 0x5410);
  w[1] = __byte_perm(a, b, 0x7632);
  w[2] = __byte_perm(c, d, 0x5410);
  w[3] = __byte_perm(c, d, 0x7632);
#else
  uint32_t out[4] = {};
  for (int row = 0; row < 4; ++row)
    for (int col = 0; col < 4; ++col) out[col] |= (w[row] >> (8 * col) & 255u) << (8 * row);
  for (int col = 0; col < 4; ++col) w[col] = out[col];
#endif
}

// Stores N words in one access when `whole` (aligned address); otherwise their first `bytes` bytes, one by one.
template <int N>
__device__ inline void store_words(uint8_t* to, const uint32_t (&words)[N], int64_t bytes, bool whole) {
  if (whole) {
    typename WordOf<4 * N>::type all;
    __builtin_memcpy(&all, words, sizeof all);
    *reinterpret_cast<typename WordOf<4 * N>::type*>(to) = all;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4 * N; ++i)
    if (i < bytes) to[i] = static_cast<uint8_t>(words[i / 4] >> (8 * (i % 4)));
}

// Raises *seen (amax) to the maximum of a block of W whole warps. Non-negative floats order like their bits, so the
// atomic is an integer maximum. `shared` holds W values; the caller synchronizes before reusing it.
template <int W>
__device__ inline void raise_amax(float most, float* amax, float* shared) {
#pragma unroll
  for (int m = 16; m > 0; m >>= 1) most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, m));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = most;
  __syncthreads();
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int w = 1; w < W; ++w) most = fmaxf(most, shared[w]);
  // *seen only grows, so most blocks skip the atomic after this read.
  if (most > *static_cast<volatile float*>(amax)) atomicMax(reinterpret_cast<int*>(amax), __float_as_int(most));
}

}  // namespace gt::cuda
