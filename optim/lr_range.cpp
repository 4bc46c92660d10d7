#include "optim/lr_range.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gt {
namespace {

constexpr size_t kFewest = 10;     // fewer points are not evaluated
constexpr double kTurned = 0.02;   // relative to the fall so far (at least to the loss): loss has turned upward
constexpr double kDiverged = 0.5;  // relative rise above the lowest loss: the test may stop

struct Smoothed {
  double first = 0, lowest = std::numeric_limits<double>::infinity(), last = 0;
  size_t at = 0;        // of the lowest
  bool broken = false;  // a loss was not finite
};

Smoothed smooth(std::span<const RangePoint> points) {
  const double keep = 1 - 1 / std::max(2.0, static_cast<double>(points.size()) / 20);
  Smoothed s;
  double average = 0, weight = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    if (!std::isfinite(points[i].loss)) {
      s.broken = true;
      break;
    }
    average = keep * average + (1 - keep) * points[i].loss;
    weight = keep * weight + (1 - keep);
    s.last = average / weight;
    if (i == 0) s.first = s.last;
    if (s.last < s.lowest) s.lowest = s.last, s.at = i;
  }
  return s;
}

}  // namespace

RangeTestResult evaluate_range_test(std::span<const RangePoint> points) {
  RangeTestResult v;
  const Smoothed s = smooth(points);
  v.enough = points.size() >= kFewest && std::isfinite(s.lowest) && s.lowest < s.first;
  if (!v.enough) return v;
  v.diverged = s.broken || s.last > s.lowest + kTurned * std::max(s.first - s.lowest, std::fabs(s.lowest));
  v.lowest_loss = s.lowest;
  v.largest_stable = v.diverged ? points[s.at].lr : points.back().lr;
  v.suggested_peak = v.largest_stable / 2;
  return v;
}

bool has_diverged(std::span<const RangePoint> points) {
  if (points.size() < 2 * kFewest) return false;
  const Smoothed s = smooth(points);
  return s.broken || s.last > s.lowest + kDiverged * std::fabs(s.lowest);
}

}  // namespace gt
