// The conditions under which a device computes: clocks, power, temperature, and what keeps its clocks down. They are
// read from what the machine says of itself; nothing is ever set.
#pragma once
#include <cstdint>
#include <limits>

namespace gt {

// Why a clock is not higher. NVIDIA's names, as nvidia-smi -q -d PERFORMANCE has them.
struct ClockLimit {
  const char* name;
  bool slows;  // what is measured under it is less than the device is able to do as it has been set up
};
constexpr ClockLimit kClockLimits[] = {
    {"clock_settings", false},  // somebody chose lower clocks
    {"power_cap", true},        // the power limit
    {"hw_slowdown", true},      // the hardware halves the clocks, or more: heat, a power brake, a sudden load
    {"sync_boost", true},       // another device of its group is slower
    {"sw_thermal", true},       // the driver, of heat
    {"hw_thermal", true},       // the hardware, of heat
    {"power_brake", true},      // the machine's power supply asks for it
    {"display_clocks", false},
    {"board_limit", true},
    {"reliability", true},
    {"other", true}};  // added to NVML after this was written
constexpr int kNumClockLimits = sizeof kClockLimits / sizeof kClockLimits[0];

// At one moment. NaN: this device, or who asks it, cannot tell.
struct DeviceConditions {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  double clock_mhz = kUnknown;  // of what computes: of a GPU's multiprocessors, of the cores that this process may use
  double memory_mhz = kUnknown;
  double watts = kUnknown;       // the whole device; of GPUs since Ampere a mean over the last second
  double watt_limit = kUnknown;  // what it is held to
  double celsius = kUnknown;
  double busy = kUnknown;  // part of the last moments, up to a second, in which it computed at all
  uint32_t limits = 0;     // bit k: kClockLimits[k] holds the clocks down
  bool limits_known = false;
};

}  // namespace gt
