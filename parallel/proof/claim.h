// What the types of a layout proof cannot see in the calls of a step: a choice by rank number. Each claim is trusted,
// so its caller states why it holds. Without a running proof they do nothing.
#pragma once
#include "kernels/core/tensor.h"
#include "parallel/mesh.h"

namespace gt::proof {

// The tensor's value is that of one rank along these axes and 0 on the others: partial sums.
void held_by_one(const Tensor&, AxisSet);

// The tensor is a slice along dimension 0, chosen by rank, of what every rank of the axis has.
void sliced(const Tensor&, Axis);

// The tensor is new memory, whatever was written there before: a call has to write it before it is read.
void fresh(const Tensor&);

}  // namespace gt::proof
