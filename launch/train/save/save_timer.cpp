#include "launch/train/save/save_timer.h"

#include <algorithm>
#include <cmath>

namespace gt {
namespace {
constexpr double kFirstSave = 300, kShortest = 60;  // seconds
constexpr size_t kRemembered = 31;
}  // namespace

double young_interval(double stall_seconds, double mtbf_seconds) { return std::sqrt(2 * stall_seconds * mtbf_seconds); }

double default_mtbf_hours(int world) { return std::clamp(50000.0 / world, 0.5, 24.0); }

SaveTimer::SaveTimer(double mtbf_seconds, double now)
    : mtbf_(mtbf_seconds), next_(now + std::min(kFirstSave, mtbf_seconds)) {}

void SaveTimer::saved(double now, double stall_seconds) {
  if (stalls_.size() == kRemembered) stalls_.erase(stalls_.begin());
  stalls_.push_back(stall_seconds);
  next_ = now + interval();
}

double SaveTimer::interval() const {
  if (stalls_.empty()) return std::min(kFirstSave, mtbf_);
  std::vector<double> sorted = stalls_;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2), sorted.end());
  return std::max(young_interval(sorted[sorted.size() / 2], mtbf_), std::min(kShortest, mtbf_));
}

}  // namespace gt
