// Declares one function per line of GT_OPS; gemm_lt.cpp, attention_choice.cpp and the .cu files define them, table.cpp
// collects them.
#pragma once
#include "kernels/ops.h"

namespace gt::cuda {
#define X(entry, Args, ...) void entry(const Args&, Stream);
GT_OPS(X)
#undef X

const OpTable& op_table();
}  // namespace gt::cuda
