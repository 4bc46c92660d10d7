#include "kernels/cpu/conditions.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "kernels/core/check.h"

namespace gt::cpu {
namespace {

namespace fs = std::filesystem;

// NaN: no such file, or no number in it.
double number_in(const std::string& path) {
  double value = DeviceConditions::kUnknown;
  std::ifstream(path) >> value;
  return value > 0 ? value : DeviceConditions::kUnknown;
}

// Mean over cores. Not /proc/cpuinfo, which falls back to the nominal clock when the kernel has no value.
double clock_mhz(const std::string& sys) {
  cpu_set_t mine;
  if (sched_getaffinity(0, sizeof mine, &mine) != 0) return DeviceConditions::kUnknown;
  double sum = 0;
  int cores = 0;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &mine)) continue;
    const double khz = number_in(cat(sys, "/devices/system/cpu/cpu", core, "/cpufreq/scaling_cur_freq"));
    if (std::isnan(khz)) return khz;
    sum += khz * 1e-3;
    ++cores;
  }
  return sum / cores;
}

double celsius(const std::string& sys) {
  double warmest = DeviceConditions::kUnknown;
  std::error_code error;
  for (const auto& sensor : fs::directory_iterator(sys + "/class/hwmon", error)) {
    std::string name;
    std::ifstream(sensor.path() / "name") >> name;
    if (name == "coretemp" || name == "k10temp" || name == "zenpower")  // temp1: the package sensor
      warmest = std::fmax(warmest, 1e-3 * number_in((sensor.path() / "temp1_input").string()));
  }
  return warmest;
}

}  // namespace

DeviceConditions conditions_in(const std::string& sys, std::string* why) {
  DeviceConditions c{.clock_mhz = clock_mhz(sys), .celsius = celsius(sys)};
  if (why == nullptr) return c;
  *why = "processor power is not available";
  if (std::isnan(c.clock_mhz)) *why += cat("; no core clock in ", sys, "/devices/system/cpu");
  if (std::isnan(c.celsius)) *why += cat("; no processor temperature in ", sys, "/class/hwmon");
  return c;
}

DeviceConditions conditions(int, std::string* why) { return conditions_in("/sys", why); }

}  // namespace gt::cpu
