// Declares one function per op of the CPU backend from the list in kernels/ops.h: `void layer_norm(const LayerNorm&,
// Stream)` and so on. Definitions: gemm.cpp, norm.cpp, attention.cpp, elementwise.cpp and others.
#pragma once
#include "kernels/ops.h"

namespace gt::cpu {
#define X(entry, Args, ...) void entry(const Args&, Stream);
GT_OPS(X)
#undef X
}  // namespace gt::cpu
