// Reference implementation of every op in kernels/ops.h: scalar loops, f64 accumulators, one rounding when an element
// is stored. Host tensors of any floating dtype (f64 too: finite differences need it). No concern for speed, threads or
// streams; shares no code with any backend, so agreement is evidence.
#pragma once
#include <vector>

#include "kernels/ops.h"

namespace gt::test {

const OpTable& reference_ops();

// Returns element i of a host tensor as f64; dtypes f32, f64, bf16, f16, f8e4m3, f8e5m2, i32.
double get(const Tensor& t, int64_t i);
// Returns all elements, for loops that read each of them many times.
std::vector<double> values(const Tensor& t);
// Stores v rounded once to nearest even. Overflow gives infinity, or the largest finite value in FP8; NaN in FP8 gives
// 0x7F.
void set(const Tensor& t, int64_t i, double v);

// The families, one file each.
namespace reference {
#define X(entry, Args, ...) void entry(const Args&, Stream);
GT_OPS(X)
#undef X
// Returns the mask's scale if element e of this sample is kept, else 0.
double drop_factor(const DropMask& mask, int64_t sample, int64_t e);
// Position of row `row` of a sequence, counted one by one.
int64_t position_of_row(const Positions&, int64_t row);
double gelu_value(double x);
double gelu_slope(double x);
}  // namespace reference

}  // namespace gt::test
