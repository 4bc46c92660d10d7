#include "kernels/cpu/simd/pair_gemm.h"
#include "kernels/cpu/simd/simd_gemm.h"

namespace gt::cpu {

void pair_gemm_avx512bf16(int64_t m, int64_t n, int64_t pairs, const uint16_t* a, int64_t lda, const uint32_t* b,
                          int64_t panel, float* c, int64_t ldc, bool more) {
  gemm_of_pairs(m, n, pairs, a, lda, b, panel, c, ldc, more);
}

}  // namespace gt::cpu
