// Products on AMX tiles: Simd's PairGemm and SplitGemm.
#pragma once
#include "kernels/cpu/simd/simd.h"

namespace gt::cpu {

void pair_gemm_amx(int64_t m, int64_t n, int64_t pairs, const uint16_t* a, int64_t lda, const uint32_t* b,
                   int64_t panel, float* c, int64_t ldc, bool more, Upcoming* next);
void split_gemm_amx(int64_t m, int64_t n, int64_t steps, const uint32_t* a, int64_t a_tile, const uint32_t* b,
                    int64_t b_tile, float* c, int64_t ldc, Upcoming* next);

}  // namespace gt::cpu
