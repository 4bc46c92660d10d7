#include "launch/observe/step_medians.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace gt {

RecentValues::RecentValues(int64_t expected) {
  values_.reserve(static_cast<size_t>(std::clamp<int64_t>(expected, 1, kMost)));
}

void RecentValues::add(double x) {
  if (values_.size() < values_.capacity())
    values_.push_back(x);
  else
    values_[count_ % values_.capacity()] = x;
  ++count_;
}

double RecentValues::median() const {
  const bool whole = count_ <= kSlow || count_ > values_.size();
  std::vector<double> v(values_.begin() + (whole ? 0 : static_cast<ptrdiff_t>(kSlow)), values_.end());
  std::erase_if(v, [](double x) { return std::isnan(x); });
  if (v.empty()) return kUnknown;
  std::nth_element(v.begin(), v.begin() + static_cast<ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

StepMedians::StepMedians(int64_t steps) {
  for (RecentValues& v : values_) v = RecentValues(steps);
}

void StepMedians::add(const StepRecord& r) {
  const double values[kNumQuantities] = {r.tokens_per_second, r.step_seconds, r.hfu,      r.bubble,
                                         r.pipeline_bubble,   r.exposed_comm, r.data_wait};
  for (size_t q = 0; q < kNumQuantities; ++q) values_[q].add(values[q]);
  seconds_ += r.step_seconds;
  ++steps_;
}

std::string StepMedians::text(double mfu) const {
  std::string out = fmt::format("{} tok/s, {} a step", format_count(of(kRate)), format_duration(of(kSeconds)));
  for (const auto& [name, x] : {std::pair("mfu", mfu),
                                {"hfu", of(kHfu)},
                                {"not computing", of(kBubble)},
                                {"exposed communication", of(kExposed)},
                                {"waiting for data", of(kDataWait)}})
    if (!std::isnan(x)) out += fmt::format(", {} {:.1f} %", name, 100 * x);
  return out;
}

}  // namespace gt
