// Instruction set of the CPU kernels: the best available, unless set_cpu_isa (kernels/backend.h) limits it. Kernels
// query it once per call and dispatch to the file compiled for it.
#pragma once
#include "kernels/device_options.h"

namespace gt::cpu {

using Isa = CpuIsa;

Isa current_isa();  // never kAuto
Isa best_isa();     // supported by this processor and its operating system
// Returns whether the processor has native bf16 multiplication. Also queries oneDNN, whose limit is fixed at its first
// use.
bool multiplies_bf16();

}  // namespace gt::cpu
