#include "kernels/cpu/simd_table.h"

namespace gt::cpu {
extern const Simd kSimdAvx512 = kTableHere;
}  // namespace gt::cpu
