// What an op has to do: floating-point operations of products, and bytes between the processor and its memory. Of the
// call as it is, and of the same work in a graph whose fusions are complete: the difference is what missing fusions
// cost. Pure arithmetic on shapes and types; launch/observe/roofline.h makes times of it.
#pragma once
#include <cstdint>

#include "kernels/ops.h"

namespace gt {

const char* name_of(OpClass);  // "products", "attention", ...

struct OpCost {
  OpClass kind = OpClass::kElementwise;
  // Executed by products, adds and multiplies apart. Of causal attention the half that the mask leaves: two products
  // forward, five backward, the second Q K^T among them.
  double flops = 0;
  // The same as MFU counts it: without that second product.
  double model_flops = 0;
  // Operands once each, read or written; twice where the op adds to what is there. Of tables the rows that are used.
  double bytes = 0;
  // Of the fused graph: products, norms with their residual, attention, optimizers as `bytes`; the loss reads and
  // writes its logits once; token and position embeddings are one pass each way; bias gradients, additions, casts,
  // copies, sums of squares, codes of 8 bits and masks alone are parts of the kernels beside them and count nothing.
  double fused_bytes = 0;
  bool fp8 = false;  // a product of numbers of 8 bits
};

#define X(entry, Args, ...) OpCost op_cost(const Args&);
GT_OPS(X)
#undef X

}  // namespace gt
