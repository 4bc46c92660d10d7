// FP8 tensors on the tape, as producers write them for the FP8 linear layers that read them
// (parallel/tensor/fp8_linear.h).
#pragma once
#include "autograd/tape.h"

namespace gt {

// Scaling of a tensor that is quantized at every use. Both are f32 [1] on the device, owned by whoever keeps the amax
// history. amax: over previous steps, constant within a step. step_amax: that of this step on this rank. Empty: current
// scaling, which computes the amax first.
struct Fp8Scaling {
  Tensor amax, step_amax;
  bool has_history = false;  // the history is not empty: amax is used
};

// x [n, C], or `of` applied to it, in E4M3, for one FP8 GEMM. Its gradient is that of the unquantized values.
struct Fp8Tensor {
  Var x;           // without data where only FP8 data were written
  Var rowwise;     // [n, C]; in the pool, freed by the GEMM that reads it
  Var columnwise;  // [C, n], for dL/dw: kept, rebuilt by a node, or neither: recomputed from x
  Tensor factors;  // f32 [16]: scale_inv and amax, 16-byte aligned for tensor cores
  const Fp8Scaling* scale = nullptr;
  Fp8Source of = Fp8Source::kPlain;

  explicit operator bool() const { return scale != nullptr; }
  Tensor scale_inv() const { return factors.slice(0, 1); }
  Tensor current_amax() const { return factors.slice(4, 1); }
  Tensor amax() const { return scale->has_history ? scale->amax : current_amax(); }
  bool has_columnwise() const { return columnwise.value || columnwise.home >= 0; }
};

// dL/dy of an FP8 linear layer in E5M2. An op that computes all of dL/dy in one pass also writes its FP8 data
// (GradRequest). Otherwise the layer quantizes it in a separate pass.
struct Fp8Grad {
  Var rowwise;     // [n, out], for dL/dx; without a home where that is not needed
  Var columnwise;  // [out, n], for dL/dw
  Var sums;        // f32 [out], column sums; without a home where there is no bias
  Parameter* bias = nullptr;
  Tensor factors;  // f32 [16], shared with the layer's input (Fp8Tensor::factors)
  const Fp8Scaling* scale = nullptr;
  bool has_amax = false;   // current_amax() is that of the gradient
  bool quantized = false;  // FP8 data and column sums are written,
  bool bias_done = false;  // the latter to the bias gradient itself

  Tensor scale_inv() const { return factors.slice(8, 1); }
  Tensor current_amax() const { return factors.slice(12, 1); }
};

namespace ops {
constexpr DType kFp8 = DType::kF8E4M3, kFp8Grad = DType::kF8E5M2;

// Allocates FP8 data of x. keep_columns: columnwise data are kept, else a node that is recorded later rebuilds them.
inline Fp8Tensor allocate_fp8(Tape& t, Var x, const Fp8Scaling& scale, bool keep_columns) {
  const int64_t n = x.value.shape.rows(), cols = x.value.shape.cols();
  Fp8Tensor c{.x = x, .factors = t.scratch({16}, DType::kF32), .scale = &scale};
  if (t.recording()) c.columnwise = keep_columns ? Var{t.scratch({cols, n}, kFp8)} : t.later({cols, n}, kFp8);
  c.rowwise = t.transient({n, cols}, kFp8);
  return c;
}
}  // namespace ops
}  // namespace gt
