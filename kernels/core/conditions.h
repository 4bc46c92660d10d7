// Operating conditions of a device: clocks, power, temperature and the reasons for clock throttling. Read only; nothing
// is ever set.
#pragma once
#include <cstdint>
#include <limits>

namespace gt {

// Clock throttle reasons, named as in nvidia-smi -q -d PERFORMANCE.
struct ClockLimit {
  const char* name;
  bool slows;  // measurements under it are below the device's configured capability
};
constexpr ClockLimit kClockLimits[] = {
    {"clock_settings", false},  // lower clocks were configured
    {"power_cap", true},        // power limit
    {"hw_slowdown", true},      // the hardware halves the clocks or more: heat, power brake, sudden load
    {"sync_boost", true},       // another device of its sync group is slower
    {"sw_thermal", true},       // driver thermal limit
    {"hw_thermal", true},       // hardware thermal limit
    {"power_brake", true},      // power brake signal of the machine's power supply
    {"display_clocks", false}, {"board_limit", true},
    {"reliability", true},     {"other", true}};  // added to NVML after this was written
constexpr int kNumClockLimits = sizeof kClockLimits / sizeof kClockLimits[0];

// Snapshot. NaN: not available on this device or from its driver.
struct DeviceConditions {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  double clock_mhz = kUnknown;  // of a GPU's multiprocessors, or of the CPU cores available to this process
  double memory_mhz = kUnknown;
  double watts = kUnknown;       // whole device; on GPUs since Ampere a mean over the last second
  double watt_limit = kUnknown;  // enforced power limit
  double celsius = kUnknown;
  double busy = kUnknown;  // fraction of the last sample period, up to a second, with any compute
  uint32_t limits = 0;     // bit k: kClockLimits[k] is active
  bool limits_known = false;
};

}  // namespace gt
