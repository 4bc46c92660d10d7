#include "kernels/cpu/simd_table.h"

namespace gt::cpu {
extern const Simd kSimdAvx2 = kTableHere;
}  // namespace gt::cpu
