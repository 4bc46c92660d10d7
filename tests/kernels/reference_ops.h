// The plainest possible meaning of every op in kernels/ops.h: scalar loops, double accumulators, one rounding when an
// element is stored. Host tensors of any floating dtype (f64 too: finite differences need it). It knows nothing of
// speed, threads or streams and shares no line with any backend, so that agreement is evidence.
#pragma once
#include "kernels/ops.h"

namespace gt::test {

const OpTable& reference_ops();

// Element i of a host tensor as double; f32, f64, bf16, f16, f8e4m3, f8e5m2, i32.
double get(const Tensor& t, int64_t i);
// Stores v rounded once to nearest even; beyond the largest finite number of the type: infinity, or of 8 bits that
// number; NaN in 8 bits: 0x7F.
void set(const Tensor& t, int64_t i, double v);

// The families, one file each.
namespace reference {
#define X(entry, Args, ...) void entry(const Args&, Stream);
GT_OPS(X)
#undef X
// The mask's scale where element e of this sample is kept, else 0.
double drop_factor(const DropMask& mask, int64_t sample, int64_t e);
double gelu_value(double x);
double gelu_slope(double x);
}  // namespace reference

}  // namespace gt::test
