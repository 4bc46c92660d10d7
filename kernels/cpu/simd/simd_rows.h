// Row-independent GEMM (Gemm::row_independent); part of every simd_table.h. A weight is read once, unpacked:
// its rows are transposed in registers, one kLanes x kLanes square at a time.
#pragma once
#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/simd/simd_gemm.h"
#include "kernels/cpu/simd/simd_transpose.h"
#include "kernels/cpu/simd/vec.h"

namespace gt::cpu {
namespace {

// Single-row case, bound by memory bandwidth: squares go from memory to the accumulators through registers only, and
// kLanes weight rows are streamed from end to end.
void gemv_rows_n(int64_t n, int64_t k, const float* a, const float* w, int64_t ldw, float* c, bool more) {
  constexpr int64_t kFew = 128;  // floats prefetched ahead: 8 cache lines
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t live = least(kLanes, n - i);
    Vec sum = more ? load(c + i) : Vec{};
    sweep(k, [&](int64_t d, auto lanes) {
      Vec square[kLanes];
      const float* at = w + i * ldw + d;
      if (live == kLanes) {
#pragma GCC unroll 16
        for (int r = 0; r < kLanes; ++r) {
          __builtin_prefetch(at + r * ldw + kFew);
          square[r] = lanes.load(at + r * ldw);
        }
      } else {
        for (int64_t r = 0; r < kLanes; ++r) square[r] = r < live ? lanes.load(at + r * ldw) : Vec{};
      }
      transpose_square(square);
      if (k - d >= kLanes) {
#pragma GCC unroll 16
        for (int j = 0; j < kLanes; ++j) sum = fma(splat(a[d + j]), square[j], sum);
      } else {
        for (int64_t j = 0; j < k - d; ++j) sum = fma(splat(a[d + j]), square[j], sum);
      }
    });
    store(c + i, sum);
  }
}

void gemm_rows_n(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* w, int64_t ldw, float* c,
                 bool more, float* scratch) {
  transpose_rows(w, ldw, n, k, 1.0f, scratch);
  const int64_t columns = (n + kLanes - 1) / kLanes * kLanes;
  gemm_block(m, columns, k, a, lda, 1, scratch, kRowsPanel, c, kRowsPanel, more);
}

}  // namespace
}  // namespace gt::cpu
