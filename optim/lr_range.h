// What a learning-rate range test (Smith 2017) says: the loss of steps whose rate only grew, and the largest rate at
// which it still fell.
#pragma once
#include <cstdint>
#include <span>

namespace gt {

struct RangePoint {
  double lr = 0, loss = 0;  // of one step; the loss may be infinite or not a number
};

struct RangeVerdict {
  bool enough = false;        // points to judge by; false: nothing else is meant
  bool diverged = false;      // the loss rose again; false: it had not risen at the end, larger rates may do as well
  double largest_stable = 0;  // rate at the lowest smoothed loss
  double suggested_peak = 0;  // half of it: room for noise, and for a schedule that stays there
  double lowest_loss = 0;     // smoothed
};

// Losses are smoothed by an exponential average, corrected for its start, that forgets in about a twentieth of the run.
RangeVerdict judge_range(std::span<const RangePoint>);

// True once the smoothed loss is so far above its lowest that more steps tell nothing: stop the test.
bool has_diverged(std::span<const RangePoint>);

}  // namespace gt
