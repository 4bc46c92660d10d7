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

}  // namespace gt
