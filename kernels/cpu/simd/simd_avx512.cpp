#include "kernels/cpu/simd/simd_table.h"

namespace gt::cpu {
extern const Simd kSimdAvx512 = kTableHere;
}  // namespace gt::cpu
