// Evaluation of a learning-rate range test (Smith 2017): losses of steps with an increasing rate, and the largest rate
// at which the loss still fell.
#pragma once
#include <cstdint>
#include <span>

namespace gt {

struct RangePoint {
  double lr = 0, loss = 0;  // of one step; the loss may be infinite or NaN
};

struct RangeTestResult {
  bool enough = false;        // there are enough points; if false, the other fields are meaningless
  bool diverged = false;      // the loss rose again; false: not by the end, larger rates may be stable too
  double largest_stable = 0;  // rate at the lowest smoothed loss
  double suggested_peak = 0;  // half of it: margin for noise, and for a schedule that stays there
  double lowest_loss = 0;     // smoothed
};

// Losses are smoothed by an exponential moving average with bias correction, over about a twentieth of the run.
RangeTestResult evaluate_range_test(std::span<const RangePoint>);

// True once the smoothed loss is so far above its minimum that the test can stop.
bool has_diverged(std::span<const RangePoint>);

}  // namespace gt
