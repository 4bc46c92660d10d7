// pair_gemm_amx.cpp on emulated tiles, as pair_gemm_amx_emulated().
#if defined(__x86_64__)
#include "tests/kernels/amx_emulated.h"
#define pair_gemm_amx pair_gemm_amx_emulated
#include "kernels/cpu/simd/pair_gemm_amx.cpp"  // NOLINT: compiled again with the instructions replaced
#endif
