// The two tables of the CPU backend. Only kernels/backend.cpp and tests need them.
#pragma once
#include "kernels/core/device.h"
#include "kernels/ops.h"

namespace gt::cpu {
extern const OpTable kTable;
extern const DeviceApi kDevice;
}  // namespace gt::cpu
