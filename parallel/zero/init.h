// Initial values of a parameter: a pure function of (seed, name, logical element), hence identical under every layout.
#pragma once
#include "autograd/parameter.h"
#include "kernels/core/device.h"

namespace gt {

// Fills `into` (f32, p.local_shape) by p.init; vocabulary padding is 0. key = stream_key(seed, "init/<name>"). Normal
// values are drawn in double over the logical unpadded tensor. Uses `threads` host threads; blocks until the copy to
// the device is complete.
void init_parameter(const Parameter& p, Tensor into, uint64_t key, const RankCoordinates&, int threads,
                    const DeviceApi&, Stream);

}  // namespace gt
