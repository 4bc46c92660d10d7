// Operating conditions of this machine's processors from the kernel: clock of the cores available to this process, and
// the hottest processor. Virtual machines mostly report neither; power is unavailable (its counters are root-only).
#pragma once
#include <string>

#include "kernels/core/conditions.h"

namespace gt::cpu {

DeviceConditions conditions(int index, std::string* why);  // Backend::conditions

// The same with /sys at `sys`.
DeviceConditions conditions_in(const std::string& sys, std::string* why);

}  // namespace gt::cpu
