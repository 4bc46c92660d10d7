// Prefix sums of integers (device code).
#pragma once
#include <cstdint>

namespace gt::cuda {

// In-place exclusive prefix sum in one block; each thread owns one contiguous range.
static __global__ void __launch_bounds__(1024) scan_kernel(int32_t* counts, int64_t n) {
  const int64_t piece = (n + 1023) / 1024, begin = min(n, threadIdx.x * piece), end = min(n, begin + piece);
  int32_t total = 0;
  for (int64_t i = begin; i < end; ++i) total += counts[i];
  __shared__ int32_t sums[1024];
  sums[threadIdx.x] = total;
  for (int d = 1; d < 1024; d *= 2) {
    __syncthreads();
    const int32_t other = threadIdx.x >= d ? sums[threadIdx.x - d] : 0;
    __syncthreads();
    sums[threadIdx.x] += other;
  }
  int32_t at = sums[threadIdx.x] - total;
  for (int64_t i = begin; i < end; ++i) {
    const int32_t count = counts[i];
    counts[i] = at;
    at += count;
  }
}

}  // namespace gt::cuda
