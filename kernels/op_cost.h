// Cost model of an op: GEMM FLOPs and memory traffic in bytes, for the call as it is and for a fully fused graph; the
// difference is the cost of missing fusions. Pure arithmetic on shapes and dtypes; launch/observe/roofline.h converts
// it to times.
#pragma once
#include <cstdint>

#include "kernels/ops.h"

namespace gt {

const char* name_of(OpClass);  // "products", "attention", ...

struct OpCost {
  OpClass kind = OpClass::kElementwise;
  // Executed FLOPs of GEMMs, counting adds and multiplies separately. Causal attention counts the unmasked half: two
  // GEMMs forward, five backward, including the recomputation of Q K^T.
  double flops = 0;
  // Model FLOPs for MFU: without that recomputation.
  double model_flops = 0;
  // Each operand once, read or written; twice where the op accumulates. Of tables, only the rows used.
  double bytes = 0;
  // Traffic of the fully fused graph. GEMMs, norms with residual, attention and optimizers: as `bytes`. The loss reads
  // and writes its logits once; token and position embeddings take one pass each way. Bias gradients, additions, casts,
  // copies, sums of squares, FP8 quantization and dropout masks are fused into adjacent kernels and count 0.
  double fused_bytes = 0;
  bool fp8 = false;  // FP8 GEMM
};

#define X(entry, Args, ...) OpCost op_cost(const Args&);
GT_OPS(X)
#undef X

}  // namespace gt
