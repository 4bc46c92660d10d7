// Initial values of a parameter: a pure function of (seed, name, logical element), so that they are equal under every
// layout.
#pragma once
#include "autograd/parameter.h"
#include "kernels/core/device.h"

namespace gt {

// Fills `into`, f32 of p.local_shape. key = stream_key(seed, "init/<name>"). Normal values are drawn in double over the logical unpadded
// tensor.
void init_parameter(const Parameter& p, Tensor into, uint64_t key, int tp_rank, int tp_size, int threads,
                    const DeviceApi&, Stream);

// Row `local` of a dimension of logical extent `full` that is cut in `blocks` equal blocks, each split over tp: its
// logical index.
int64_t logical_index(int64_t local, int64_t full, int blocks, int tp_rank, int tp_size);

}  // namespace gt
