// The device table of this backend. Refuses to know what is computed.
#pragma once
#include "kernels/core/device.h"

namespace gt::cuda {
const DeviceApi& device_api();
}  // namespace gt::cuda
