#include "kernels/cpu/simd/simd_table.h"

namespace gt::cpu {
extern const Simd kSimdAvx512Bf16 = kTableHere;
}  // namespace gt::cpu
