#include "kernels/cpu/simd/pair_gemm.h"
#include "kernels/cpu/simd/simd_gemm.h"

namespace gt::cpu {

void pair_gemm_avx512bf16(int64_t m, int64_t n, int64_t pairs, const uint16_t* a, int64_t lda, const uint32_t* b,
                          int64_t ldb, float* c, int64_t ldc, bool more) {
  gemm_block<PairProduct>(m, n, pairs, a, lda, 2, reinterpret_cast<const float*>(b), ldb, c, ldc, more);
}

}  // namespace gt::cpu
