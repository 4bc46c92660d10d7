#include "launch/observe/conditions.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "parallel/comm/host_values.h"

namespace gt {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kBusy = 0.5;         // utilization of a busy sample
constexpr double kWorthAWord = 0.05;  // fraction of samples from which a limit is printed; records have all
constexpr std::chrono::milliseconds kGpu{100}, kCpu{1000};  // sampling intervals; on a CPU it competes with the work

bool has_readings(const DeviceConditions& c) {
  return !std::isnan(c.clock_mhz) || !std::isnan(c.memory_mhz) || !std::isnan(c.watts) || !std::isnan(c.celsius) ||
         c.limits_known;
}

Range range_of(std::span<const DeviceConditions> samples, double DeviceConditions::*what) {
  std::vector<double> known;
  for (const DeviceConditions& c : samples)
    if (!std::isnan(c.*what)) known.push_back(c.*what);
  if (known.empty()) return {};
  std::sort(known.begin(), known.end());
  return {known.front(), known[known.size() / 2], known.back()};
}

// Selects the device with the largest known value; -1: unknown on all.
template <class Value>
int most(std::span<const ConditionsSummary> devices, Value value) {
  int best = -1;
  for (size_t k = 0; k < devices.size(); ++k)
    if (const double v = value(devices[k]);
        !std::isnan(v) && (best < 0 || v > value(devices[static_cast<size_t>(best)])))
      best = static_cast<int>(k);
  return best;
}

int hottest(std::span<const ConditionsSummary> devices) {
  return most(devices, [](const ConditionsSummary& s) { return s.celsius.max; });
}
int slowest_clock(std::span<const ConditionsSummary> devices) {
  return most(devices, [](const ConditionsSummary& s) { return -s.clock_mhz.median; });
}

struct Limited {
  int limit, device, devices;  // limit; device with the largest share; number of devices with the limit
  double share, samples;       // of that device
};
// Returns every limit that was active on any device, largest share first.
std::vector<Limited> limited(std::span<const ConditionsSummary> devices) {
  std::vector<Limited> out;
  for (int k = 0; k < kNumClockLimits; ++k) {
    const int worst = most(devices, [&](const ConditionsSummary& s) { return s.limited[k]; });
    if (worst < 0 || devices[static_cast<size_t>(worst)].limited[k] == 0) continue;
    const auto n = std::count_if(devices.begin(), devices.end(), [&](const auto& s) { return s.limited[k] > 0; });
    const ConditionsSummary& there = devices[static_cast<size_t>(worst)];
    out.push_back({k, worst, static_cast<int>(n), there.limited[k], there.samples});
  }
  std::stable_sort(out.begin(), out.end(), [](const Limited& a, const Limited& b) { return a.share > b.share; });
  return out;
}

Json number(double x) { return std::isnan(x) ? Json() : Json(x); }

Json json_of(const Range& r) {
  return std::isnan(r.median) ? Json() : Json{{"min", r.min}, {"median", r.median}, {"max", r.max}};
}

Json extreme(int device, const char* each, const char* what, double value) {
  return device < 0 ? Json() : Json{{each, device}, {what, value}};
}

}  // namespace

ConditionsSummary summary_of(std::span<const DeviceConditions> all, bool busy_only) {
  std::vector<DeviceConditions> samples;
  for (const DeviceConditions& c : all)
    if (!busy_only || !(c.busy < kBusy)) samples.push_back(c);
  ConditionsSummary s;
  s.samples = static_cast<double>(samples.size());
  s.clock_mhz = range_of(samples, &DeviceConditions::clock_mhz);
  s.memory_mhz = range_of(samples, &DeviceConditions::memory_mhz);
  s.watts = range_of(samples, &DeviceConditions::watts);
  s.celsius = range_of(samples, &DeviceConditions::celsius);
  double known = 0, held[kNumClockLimits] = {};
  for (const DeviceConditions& c : samples) {
    if (!std::isnan(c.watt_limit)) s.watt_limit = c.watt_limit;
    if (!c.limits_known) continue;
    ++known;
    for (int k = 0; k < kNumClockLimits; ++k) held[k] += c.limits >> k & 1;
  }
  for (int k = 0; k < kNumClockLimits; ++k) s.limited[k] = known > 0 ? held[k] / known : DeviceConditions::kUnknown;
  return s;
}

ConditionsWatch::ConditionsWatch(const Backend& backend, int index) : backend_(backend), index_(index) {
  if (backend.conditions == nullptr)
    why_ = cat("no conditions of a device of kind ", backend.device->name);
  else
    has_readings_ = has_readings(backend.conditions(index, &why_));
}

void ConditionsWatch::start() {
  stop();
  samples_.clear();
  over_ = false;
  if (has_readings_) thread_ = std::thread([this] { sample(); });
}

void ConditionsWatch::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void ConditionsWatch::sample() {
  const auto every = backend_.kind == DeviceKind::kCpu ? kCpu : kGpu;
  auto next = std::chrono::steady_clock::now();
  do {
    samples_.push_back(backend_.conditions(index_, nullptr));
    next = std::max(next + every, std::chrono::steady_clock::now());  // missed samples are not repeated
    std::unique_lock lock(mutex_);
    if (wake_.wait_until(lock, next, [this] { return over_; })) return;
  } while (true);
}

std::vector<ConditionsSummary> gather_conditions(ProcessGroup& world, const ConditionsSummary& mine) {
  return gather_values(world, mine);
}

std::string conditions_text(std::span<const ConditionsSummary> devices, const char* each) {
  const ConditionsSummary& s = devices.front();
  std::vector<std::string> parts;
  const auto range = [](const Range& r, const char* unit, const std::string& more) {
    return fmt::format("{:.0f} {} ({:.0f} to {:.0f}{})", r.median, unit, r.min, r.max, more);
  };
  if (!std::isnan(s.clock_mhz.median)) parts.push_back(range(s.clock_mhz, "MHz", ""));
  if (!std::isnan(s.memory_mhz.median)) parts.push_back(fmt::format("memory {:.0f} MHz", s.memory_mhz.median));
  const std::string limit = std::isnan(s.watt_limit) ? "" : fmt::format(", limit {:.0f}", s.watt_limit);
  if (!std::isnan(s.watts.median)) parts.push_back(range(s.watts, "W", limit));
  if (!std::isnan(s.celsius.median)) parts.push_back(range(s.celsius, "C", ""));
  std::string out = fmt::format("{}", fmt::join(parts, "   "));
  if (devices.size() == 1) return out;
  if (const int k = hottest(devices); k >= 0)
    out += fmt::format("\n{} {} the hottest, {:.0f} C", each, k, devices[static_cast<size_t>(k)].celsius.max);
  if (const int k = slowest_clock(devices); k >= 0)
    out += fmt::format("{}{} {} with the lowest clock, {:.0f} MHz", hottest(devices) >= 0 ? "; " : "\n", each, k,
                       devices[static_cast<size_t>(k)].clock_mhz.median);
  return out;
}

std::string limits_text(std::span<const ConditionsSummary> devices, const char* each) {
  std::vector<std::string> parts;
  for (const Limited& l : limited(devices)) {
    if (!kClockLimits[l.limit].slows || l.share < kWorthAWord) continue;
    std::string where;
    if (devices.size() > 1) where = fmt::format(" ({} {}", each, l.device);
    if (l.devices > 1) where += fmt::format(", and {} more", l.devices - 1);
    parts.push_back(fmt::format("{} in {:.0f} % of {:.0f} samples{}{}", kClockLimits[l.limit].name, 100 * l.share,
                                l.samples, where, where.empty() ? "" : ")"));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string conditions_json(std::span<const ConditionsSummary> devices, const std::string& why, const char* each) {
  const ConditionsSummary& s = devices.front();
  Json limits = std::isnan(s.limited[0]) ? Json() : Json::object();
  for (int k = 0; k < kNumClockLimits; ++k)
    if (s.limited[k] > 0) limits[kClockLimits[k].name] = s.limited[k];
  Json j{{"looks", static_cast<int64_t>(s.samples)},
         {"clock_mhz", json_of(s.clock_mhz)},
         {"memory_mhz", json_of(s.memory_mhz)},
         {"watts", json_of(s.watts)},
         {"watt_limit", number(s.watt_limit)},
         {"celsius", json_of(s.celsius)},
         {"limits", limits},
         {"why_unknown", why.empty() ? Json() : Json(why)}};
  if (devices.size() == 1) return j.dump();
  const int hot = hottest(devices), slow = slowest_clock(devices);
  j["hottest"] = extreme(hot, each, "celsius", hot < 0 ? 0 : devices[static_cast<size_t>(hot)].celsius.max);
  j["lowest_clock"] =
      extreme(slow, each, "clock_mhz", slow < 0 ? 0 : devices[static_cast<size_t>(slow)].clock_mhz.median);
  Json all = Json::object();
  for (const Limited& l : limited(devices))
    all[kClockLimits[l.limit].name] = {{each, l.device}, {"share", l.share}, {fmt::format("{}s", each), l.devices}};
  j["limits_anywhere"] = all;
  return j.dump();
}

}  // namespace gt
