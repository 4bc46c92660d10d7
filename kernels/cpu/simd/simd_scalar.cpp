#include "kernels/cpu/simd/simd_table.h"

namespace gt::cpu {
extern const Simd kSimdScalar = kTableHere;
}  // namespace gt::cpu
