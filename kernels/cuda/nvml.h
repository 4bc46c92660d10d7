// NVIDIA's management library, NVML, loaded at run time: what GPUs say of their clocks, power and temperature. It is
// asked and never told: no function that sets anything is looked up. Where there is none, or a GPU does not answer, all
// else works as well.
#pragma once
#include <string>

#include "kernels/core/conditions.h"

namespace gt::cuda {

// Of Backend (kernels/backend.h). `index`: CUDA's; NVML counts GPUs in another order, so they are told by PCI bus.
DeviceConditions conditions(int index, std::string* why);

// Of the NVIDIA driver: "580.65.06"; empty where NVML does not say.
std::string driver_version();

}  // namespace gt::cuda
