// Counts consecutive skipped steps. A few with non-finite gradients are normal while the loss scale is too high. Too
// many end the run, with a diagnosis.
#pragma once
#include <array>

#include "launch/engine/engine.h"

namespace gt {

class SkipWatch {
 public:
  SkipWatch(int64_t most, int64_t in_a_row) : most_(most), in_a_row_(in_a_row) {}

  // Collective, after every step. Throws kNumerical on every rank after `most` consecutive skipped steps. The message
  // names the first non-finite gradient in the order of the backward, the rank that holds it, the loss, and the last
  // scales.
  void after(const StepResult&, int64_t step, const Engine&);
  int64_t in_a_row() const { return in_a_row_; }

 private:
  int64_t most_, in_a_row_;
  std::array<double, 10> scales_{};  // ring buffer
  int64_t steps_ = 0;
};

}  // namespace gt
