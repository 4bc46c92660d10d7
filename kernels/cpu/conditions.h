// What the kernel says of this machine's processors: the clock of the cores that this process may use, and the warmest
// processor. Virtual machines mostly have neither; power is not told (the kernel keeps its counters from users).
#pragma once
#include <string>

#include "kernels/core/conditions.h"

namespace gt::cpu {

DeviceConditions conditions(int index, std::string* why);  // of Backend

// The same where /sys is `sys`.
DeviceConditions conditions_in(const std::string& sys, std::string* why);

}  // namespace gt::cpu
