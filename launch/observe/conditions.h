// Device conditions during a measurement: a background thread samples clocks, power and temperature. Compares the
// devices of all ranks and reports what limited their clocks.
#pragma once
#include <condition_variable>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "kernels/backend.h"
#include "parallel/comm/process_group.h"

namespace gt {

// Statistics over the samples with a known value; NaN if there are none.
struct Range {
  double min = DeviceConditions::kUnknown, median = DeviceConditions::kUnknown, max = DeviceConditions::kUnknown;
};

// Conditions of one device over a period. Numbers only, so that ranks can send it.
struct ConditionsSummary {
  double samples = 0;
  Range clock_mhz, memory_mhz, watts, celsius;
  double watt_limit = DeviceConditions::kUnknown;  // of the last sample with a known value
  double limited[kNumClockLimits];                 // fraction of the samples in which each was active; NaN: unknown
};
// busy_only: ignores samples with low device utilization.
ConditionsSummary summary_of(std::span<const DeviceConditions>, bool busy_only = false);

// Samples a device from its own thread, which is not part of the measurement and selects no device.
class ConditionsWatch {
 public:
  // Takes one sample that does not count, because finding the device can be slow. If it is empty, never samples again.
  ConditionsWatch(const Backend&, int index);
  ~ConditionsWatch() { stop(); }
  ConditionsWatch(const ConditionsWatch&) = delete;
  ConditionsWatch& operator=(const ConditionsWatch&) = delete;

  // Discards earlier samples; the first one is taken immediately.
  void start();
  void stop();  // no effect if not running
  std::span<const DeviceConditions> samples() const {
    return samples_;
  }                                                // samples between start and stop; call when stopped
  const std::string& why() const { return why_; }  // why a value is unknown; empty: none is

 private:
  void sample();
  const Backend& backend_;
  int index_;
  bool has_readings_ = false;
  std::string why_;
  std::vector<DeviceConditions> samples_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool over_ = false;
  std::thread thread_;
};

// Collective over host memory. Returns the summaries of all ranks, on all of them.
std::vector<ConditionsSummary> gather_conditions(ProcessGroup& world, const ConditionsSummary& mine);

// Returns the known values of the first device: "1755 MHz (1200 to 1980)   memory 2619 MHz   412 W (251 to 698, limit
// 700)   58 C (41 to 66)". With several devices a second line names the hottest one and the one with the lowest clock.
// `each`: label of a device, "rank". Empty: nothing is known.
std::string conditions_text(std::span<const ConditionsSummary>, const char* each);
// Returns what limited clocks in more than a few samples, worst first: "power_cap in 33 % of 30 samples (rank 1, and 1
// more)". Empty: nothing known.
std::string limits_text(std::span<const ConditionsSummary>, const char* each);
// The same as one JSON object. `why`: why a value is unknown; "": none is.
std::string conditions_json(std::span<const ConditionsSummary>, const std::string& why, const char* each);

}  // namespace gt
