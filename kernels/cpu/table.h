// Tables of the CPU backend. Only kernels/backend.cpp and tests need them.
#pragma once
#include "kernels/core/device.h"
#include "kernels/ops.h"

namespace gt::cpu {
extern const OpTable kTable;
extern const DeviceApi kDevice;
int64_t weight_copy_bytes(const Gemm&);  // see Backend
int64_t held_copy_bytes(Stream);
}  // namespace gt::cpu
