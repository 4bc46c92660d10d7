// split_gemm_amx.cpp on emulated tiles, as split_gemm_amx_emulated().
#if defined(__x86_64__)
#include "tests/kernels/amx_emulated.h"
#define split_gemm_amx split_gemm_amx_emulated
#include "kernels/cpu/simd/split_gemm_amx.cpp"  // NOLINT: compiled again with the instructions replaced
#endif
