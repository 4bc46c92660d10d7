// The instruction set that CPU kernels use: the best that the processor has, unless set_cpu_isa (kernels/backend.h)
// chose less. Kernels ask once a call and jump to the file that was compiled for it.
#pragma once
#include <cstdint>

namespace gt::cpu {

// Ascending: a processor that has one has all before it. kAvx512: f, bw, dq, vl.
enum class Isa : uint8_t { kScalar, kAvx2, kAvx512, kAvx512Bf16 };

Isa current_isa();
Isa best_isa();  // what this processor and its operating system offer
const char* name_of(Isa isa);
// Whether products of bf16 are the processor's own. Asks oneDNN too, which stays with the limit of its first use.
bool multiplies_bf16();

}  // namespace gt::cpu
