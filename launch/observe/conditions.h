// The conditions of a measurement: a thread beside it looks at the device's clocks, power and temperature every so
// often. The ranks' devices are held against each other, and what kept their clocks down is said.
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

// Of the looks that knew; NaN when none did.
struct Range {
  double min = DeviceConditions::kUnknown, median = DeviceConditions::kUnknown, max = DeviceConditions::kUnknown;
};

// What one device was like for a while. Numbers alone, so that ranks can send it.
struct ConditionsSummary {
  double looks = 0;
  Range clock_mhz, memory_mhz, watts, celsius;
  double watt_limit = DeviceConditions::kUnknown;  // of the last look that knew
  double limited[kNumClockLimits];                 // part of the looks in which each held; NaN: nobody knows
};
// busy_only: looks at a device that is known to have done little do not count.
ConditionsSummary summary_of(std::span<const DeviceConditions>, bool busy_only = false);

// Looks at a device from a thread of its own, which is no part of what is measured and selects no device.
class ConditionsWatch {
 public:
  // Looks once, which does not count: to find the device can take long. Where that tells nothing nobody looks again.
  ConditionsWatch(const Backend&, int index);
  ~ConditionsWatch() { stop(); }
  ConditionsWatch(const ConditionsWatch&) = delete;
  ConditionsWatch& operator=(const ConditionsWatch&) = delete;

  // Forgets earlier looks; the first one is at once.
  void start();
  void stop();                                                      // does nothing when it is not running
  std::span<const DeviceConditions> seen() const { return seen_; }  // between start and stop; when it is stopped
  const std::string& why() const { return why_; }                   // something is unknown; empty: nothing is

 private:
  void look();
  const Backend& backend_;
  int index_;
  bool tells_ = false;
  std::string why_;
  std::vector<DeviceConditions> seen_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool over_ = false;
  std::thread thread_;
};

// Collective over host memory. Of all ranks, on all of them.
std::vector<ConditionsSummary> gather_conditions(ProcessGroup& world, const ConditionsSummary& mine);

// The first device's "1755 MHz (1200 to 1980)   memory 2619 MHz   412 W (251 to 698, limit 700)   58 C (41 to 66)", as
// far as it is known, and of several which is the hottest and which had the lowest clock, as a second line; `each` is
// what one is called, "rank". Empty: nothing is known.
std::string conditions_text(std::span<const ConditionsSummary>, const char* each);
// What kept clocks below what the devices are set up for in more than a moment, worst first: "power_cap in 33 % of 30
// looks (rank 1, and 1 more)". Empty: nothing did, as far as is known.
std::string limits_text(std::span<const ConditionsSummary>, const char* each);
// The same as one JSON object. `why`: something is unknown; "": nothing is.
std::string conditions_json(std::span<const ConditionsSummary>, const std::string& why, const char* each);

}  // namespace gt
