// The null backend: ops that compute nothing, on memory that does not exist. Memory plans, FLOP counts, schedules and
// dry runs use the same calls as training.
#pragma once
#include "kernels/core/device.h"
#include "kernels/ops.h"

namespace gt::null {
extern const OpTable kTable;
extern const DeviceApi kDevice;
}  // namespace gt::null
