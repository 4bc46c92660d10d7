// Tensors as numbers of 8 bits on the tape: what producers write for the linear layers that read them
// (parallel/tensor/fp8_linear.h).
#pragma once
#include "autograd/tape.h"

namespace gt {

// What one tensor that is encoded anew at every use is scaled by. Both f32 [1] on the device, of whoever keeps the
// history: the largest of steps before, which stands still within a step, and of this step on this rank. Empty: what is
// encoded is looked at first.
struct CodeScale {
  Tensor amax, seen;
  bool known = false;  // there have been steps before that saw something: amax is used
};

// x [n, C], or what `of` makes of it, as f8e4m3, for one product. Its gradient is that of the values.
struct Coded {
  Var x;           // without a value where only codes were made
  Var rows;        // [n, C]; in the pool, given back by the product that reads it
  Var columns;     // [C, n], for the weight's gradient: kept, or rebuilt by then, or neither: made again from x
  Tensor factors;  // f32 [16], at addresses that tensor cores take
  const CodeScale* scale = nullptr;
  CodesOf of = CodesOf::kPlain;

  explicit operator bool() const { return scale != nullptr; }
  Tensor inverse() const { return factors.slice(0, 1); }       // what codes are multiplied by
  Tensor largest() const { return factors.slice(4, 1); }
  Tensor amax() const { return scale->known ? scale->amax : largest(); }
  bool has_columns() const { return columns.value || columns.home >= 0; }
};

// The gradient of what one product gives, as f8e5m2. Whoever makes that gradient in one piece writes its codes on the
// way (GradRequest); else the layer does, in a pass of its own.
struct GradCodes {
  Var rows;     // [n, out], for the input's gradient; without a home where nobody wants that
  Var columns;  // [out, n], for the weight's
  Var sums;     // f32 [out], over rows; without a home where there is no bias
  Parameter* bias = nullptr;
  Tensor factors;  // f32 [16]: the input's, which has room for these too
  const CodeScale* scale = nullptr;
  bool looked = false;  // largest() is that of the gradient
  bool made = false;    // codes and sums are there,
  bool summed = false;  // the latter where they belong: the bias has its gradient

  Tensor inverse() const { return factors.slice(8, 1); }
  Tensor largest() const { return factors.slice(12, 1); }
};

namespace ops {
constexpr DType kCodes = DType::kF8E4M3, kGradCodes = DType::kF8E5M2;

// Room for codes of x. columns: kept (true), or a node that is recorded later rebuilds them.
inline Coded code_room(Tape& t, Var x, const CodeScale& scale, bool keep_columns) {
  const int64_t n = x.value.shape.rows(), cols = x.value.shape.cols();
  Coded c{.x = x, .factors = t.scratch({16}, DType::kF32), .scale = &scale};
  if (t.recording()) c.columns = keep_columns ? Var{t.scratch({cols, n}, kCodes)} : t.later({cols, n}, kCodes);
  c.rows = t.transient({n, cols}, kCodes);
  return c;
}
}  // namespace ops
}  // namespace gt
