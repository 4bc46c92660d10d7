// Instruction set of the CPU kernels: the best available, unless set_cpu_isa (kernels/backend.h) limits it. Kernels
// query it once per call and dispatch to the file compiled for it.
#pragma once
#include <cstdint>

namespace gt::cpu {

// Ascending: each level includes all before it. kAvx512: f, bw, dq, vl.
enum class Isa : uint8_t { kScalar, kAvx2, kAvx512, kAvx512Bf16 };

Isa current_isa();
Isa best_isa();  // supported by this processor and its operating system
const char* name_of(Isa isa);
// Returns whether the processor has native bf16 multiplication. Also queries oneDNN, whose limit is fixed at its first
// use.
bool multiplies_bf16();

}  // namespace gt::cpu
