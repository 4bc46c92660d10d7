// Products by rows (Gemm::by_rows): results of a row that do not depend on how many rows there are, which oneDNN's
// kernels do not promise, and one pass over the weight for few rows.
#pragma once
#include "kernels/ops.h"

namespace gt::cpu {

void gemm_by_rows(const Gemm&, Stream);

}  // namespace gt::cpu
