// NVML, NVIDIA's management library, loaded at run time: GPU clocks, power and temperature. Read-only: no function that
// changes a setting is looked up. Optional: without it, or when a GPU does not answer, everything else works.
#pragma once
#include <string>

#include "kernels/core/conditions.h"

namespace gt::cuda {

// Entry of Backend (kernels/backend.h). `index`: CUDA's; GPUs are matched by PCI bus, because NVML numbers them
// differently.
DeviceConditions conditions(int index, std::string* why);

// Returns the NVIDIA driver version, e.g. "580.65.06"; empty when NVML does not report it.
std::string driver_version();

}  // namespace gt::cuda
