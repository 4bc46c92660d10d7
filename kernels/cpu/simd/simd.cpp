#include "kernels/cpu/simd/simd.h"

#include "kernels/cpu/simd/isa.h"

namespace gt::cpu {

const Simd& simd() {
  switch (current_isa()) {
    case Isa::kScalar: return kSimdScalar;
    case Isa::kAvx2: return kSimdAvx2;
    default: return kSimdAvx512;
  }
}

}  // namespace gt::cpu
