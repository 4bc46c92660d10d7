#include "kernels/cpu/simd/simd_table.h"

namespace gt::cpu {
extern const Simd kSimdAvx2 = kTableHere;
}  // namespace gt::cpu
