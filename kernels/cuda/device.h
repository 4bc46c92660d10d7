// The device table of this backend. Refuses to know what is computed.
#pragma once
#include "kernels/core/device.h"

namespace gt::cuda {
const DeviceApi& device_api();
void* raw_stream(Stream);  // its cudaStream_t
}  // namespace gt::cuda
