// FP8 tensors on the tape, as producers write them for the FP8 linear layers that read them
// (parallel/tensor/fp8_linear.h).
#pragma once
#include "autograd/tape.h"

namespace gt {

// Scaling of a tensor that is quantized at every use. Both are f32 [1] on the device, owned by whoever keeps the amax
// history. amax: over previous steps, constant within a step. seen: amax of this step on this rank. Empty: current
// scaling, which computes the amax first.
struct CodeScale {
  Tensor amax, seen;
  bool known = false;  // the history is not empty: amax is used
};

// x [n, C], or `of` applied to it, in E4M3, for one FP8 GEMM. Its gradient is that of the unquantized values.
struct Coded {
  Var x;           // without data where only FP8 data were written
  Var rows;        // rowwise [n, C]; in the pool, freed by the GEMM that reads it
  Var columns;     // columnwise [C, n], for dL/dw: kept, rebuilt by a node, or neither: recomputed from x
  Tensor factors;  // f32 [16]: scale_inv and amax, 16-byte aligned for tensor cores
  const CodeScale* scale = nullptr;
  CodesOf of = CodesOf::kPlain;

  explicit operator bool() const { return scale != nullptr; }
  Tensor inverse() const { return factors.slice(0, 1); }       // scale_inv
  Tensor largest() const { return factors.slice(4, 1); }
  Tensor amax() const { return scale->known ? scale->amax : largest(); }
  bool has_columns() const { return columns.value || columns.home >= 0; }
};

// dL/dy of an FP8 linear layer in E5M2. An op that computes all of dL/dy in one pass also writes its FP8 data
// (GradRequest). Otherwise the layer quantizes it in a separate pass.
struct GradCodes {
  Var rows;     // rowwise [n, out], for dL/dx; without a home where that is not needed
  Var columns;  // columnwise [out, n], for dL/dw
  Var sums;     // f32 [out], column sums; without a home where there is no bias
  Parameter* bias = nullptr;
  Tensor factors;  // f32 [16], shared with the layer's input (Coded::factors)
  const CodeScale* scale = nullptr;
  bool looked = false;  // largest() is the amax of the gradient
  bool made = false;    // FP8 data and column sums are written,
  bool summed = false;  // the latter to the bias gradient itself

  Tensor inverse() const { return factors.slice(8, 1); }
  Tensor largest() const { return factors.slice(12, 1); }
};

namespace ops {
constexpr DType kCodes = DType::kF8E4M3, kGradCodes = DType::kF8E5M2;

// Allocates FP8 data of x. keep_columns: columnwise data are kept, else a node that is recorded later rebuilds them.
inline Coded code_room(Tape& t, Var x, const CodeScale& scale, bool keep_columns) {
  const int64_t n = x.value.shape.rows(), cols = x.value.shape.cols();
  Coded c{.x = x, .factors = t.scratch({16}, DType::kF32), .scale = &scale};
  if (t.recording()) c.columns = keep_columns ? Var{t.scratch({cols, n}, kCodes)} : t.later({cols, n}, kCodes);
  c.rows = t.transient({n, cols}, kCodes);
  return c;
}
}  // namespace ops
}  // namespace gt
