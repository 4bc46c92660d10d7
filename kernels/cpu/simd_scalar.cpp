#include "kernels/cpu/simd_table.h"

namespace gt::cpu {
extern const Simd kSimdScalar = kTableHere;
}  // namespace gt::cpu
