// Row-independent GEMM (Gemm::row_independent): a row's result does not depend on the number of rows, which oneDNN does
// not guarantee. One pass over the weight when there are few rows.
#pragma once
#include "kernels/ops.h"

namespace gt::cpu {

void gemm_by_rows(const Gemm&, Stream);

}  // namespace gt::cpu
