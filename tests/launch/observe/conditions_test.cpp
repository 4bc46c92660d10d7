// Device conditions: summaries of samples, their text, and sampling intervals.
#include "launch/observe/conditions.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "launch/options/json_text.h"
#include "tests/support/test.h"

namespace gt {
namespace {

constexpr uint32_t bit_of(std::string_view name) {
  for (uint32_t k = 0; k < kNumClockLimits; ++k)
    if (kClockLimits[k].name == name) return 1u << k;
  return 0;
}

DeviceConditions reading(double mhz, double watts, double celsius, double busy, uint32_t limits = 0) {
  return {.clock_mhz = mhz, .watts = watts, .celsius = celsius, .busy = busy, .limits = limits, .limits_known = true};
}

// A device whose clock is the index of the sample.
std::atomic<int> samples{0};
std::atomic<bool> has_clock{true};
DeviceConditions counted(int index, std::string* why) {
  DeviceConditions c;
  if (why != nullptr) *why = "device " + std::to_string(index);
  const int n = samples++;
  if (has_clock) c.clock_mhz = n;
  return c;
}

}  // namespace

TEST_CASE("conditions are minimum, median and maximum of the valid samples") {
  constexpr double kNan = DeviceConditions::kUnknown;
  const std::vector<DeviceConditions> taken{
      reading(1980, 700, kNan, 0.9, bit_of("power_cap")), reading(345, kNan, kNan, 0.1),
      reading(1200, 300, kNan, kNan, bit_of("power_cap") | bit_of("sw_thermal")), reading(1500, 500, kNan, 0.5)};
  const ConditionsSummary all = summary_of(taken), busy = summary_of(taken, true);
  CHECK((all.samples == 4 && busy.samples == 3));  // a device with unknown utilization counts as busy
  CHECK((all.clock_mhz.min == 345 && all.clock_mhz.median == 1500 && all.clock_mhz.max == 1980));
  CHECK((busy.clock_mhz.min == 1200 && busy.clock_mhz.median == 1500 && busy.clock_mhz.max == 1980));
  CHECK((all.watts.min == 300 && all.watts.median == 500 && all.watts.max == 700));
  CHECK(std::isnan(all.celsius.median));
  CHECK(std::isnan(all.watt_limit));
  CHECK(all.limited[1] == 0.5);
  CHECK(busy.limited[1] == Approx(2. / 3));
  CHECK(all.limited[4] == 0.25);
  CHECK(all.limited[0] == 0);
  const ConditionsSummary none = summary_of({});
  CHECK((none.samples == 0 && std::isnan(none.clock_mhz.min) && std::isnan(none.limited[0])));
}

TEST_CASE("of several devices the hottest, the slowest and the most throttled are named") {
  const uint32_t cap = bit_of("power_cap"), heat = bit_of("hw_thermal"), chosen = bit_of("clock_settings");
  std::vector<ConditionsSummary> devices;
  devices.push_back(summary_of(std::vector{reading(1900, 500, 60, 1, cap), reading(1900, 500, 60, 1)}));
  devices.push_back(summary_of({}));
  devices.push_back(
      summary_of(std::vector{reading(1700, 500, 80, 1, cap | heat), reading(1700, 500, 71, 1, heat | chosen)}));
  devices.push_back(summary_of(std::vector{reading(1000, 400, 75, 1), reading(1900, 400, 75, 1)}));
  CHECK(conditions_text(devices, "rank") ==
        "1900 MHz (1900 to 1900)   500 W (500 to 500)   60 C (60 to 60)\n"
        // a momentary dip does not count as a low clock
        "rank 2 the hottest, 80 C; rank 2 with the lowest clock, 1700 MHz");
  CHECK(limits_text(devices, "rank") ==
        "hw_thermal in 100 % of 2 samples (rank 2), power_cap in 50 % of 2 samples (rank 0, and 1 more)");
  const JsonValue j = parse_json(conditions_json(devices, "", "rank"), "conditions");
  CHECK(j.find("hottest")->find("rank")->text == "2");
  CHECK(j.find("why_unknown")->kind == JsonValue::Kind::kNull);
  CHECK(j.find("limits")->find("hw_thermal") == nullptr);  // a limit of the first device only
  CHECK(j.find("limits_anywhere")->find("clock_settings")->find("ranks")->text == "1");
  std::vector<DeviceConditions> mostly(100, reading(1900, 500, 60, 1));
  mostly[7].limits = cap;
  CHECK(limits_text(std::vector{summary_of(mostly)}, "rank").empty());  // momentary
  const std::vector<ConditionsSummary> blind(2, summary_of({}));
  CHECK(conditions_text(blind, "rank").empty());
  CHECK(limits_text(blind, "rank").empty());
  const JsonValue b = parse_json(conditions_json(blind, "no driver", "rank"), "conditions");
  CHECK(b.find("why_unknown")->text == "no driver");
  for (const char* unknown : {"clock_mhz", "watts", "celsius", "limits", "hottest", "lowest_clock"}) {
    INFO(unknown);
    CHECK(b.find(unknown)->kind == JsonValue::Kind::kNull);
  }
}

TEST_CASE("a watch samples between start and stop, and not at all without sensors") {
  Backend backend = null_backend();
  backend.conditions = counted;
  samples = 0;
  has_clock = true;
  ConditionsWatch watch(backend, 3);
  CHECK(watch.why() == "device 3");
  CHECK((samples == 1 && watch.samples().empty()));
  watch.start();
  while (samples < 4) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  watch.stop();
  const int taken = samples;
  REQUIRE(watch.samples().size() == static_cast<size_t>(taken) - 1);
  CHECK(watch.samples()[0].clock_mhz == 1);
  watch.stop();
  watch.start();
  watch.stop();
  REQUIRE(watch.samples().size() == 1);  // at least one sample, however short the run
  CHECK(watch.samples()[0].clock_mhz == taken);

  has_clock = false;
  samples = 0;
  ConditionsWatch blind(backend, 0);
  blind.start();
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  blind.stop();
  CHECK(samples == 1);
  backend.conditions = nullptr;
  CHECK_THAT(ConditionsWatch(backend, 0).why(), Catch::Contains("null"));
}

}  // namespace gt
