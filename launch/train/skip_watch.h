// Steps without finite gradients are skipped, which a loss scale that was too high explains a few times. So many in a
// row that nothing explains them end the run, with what is known about their cause.
#pragma once
#include <array>

#include "launch/engine/engine.h"

namespace gt {

class SkipWatch {
 public:
  SkipWatch(int64_t most, int64_t in_a_row) : most_(most), in_a_row_(in_a_row) {}

  // Collective, after every step. Throws kNumerical on every rank when `most` steps in a row were skipped: the first
  // gradient that is not finite in the order of the backward, the rank that holds it, the loss, the last scales.
  void after(const StepResult&, int64_t step, const Engine&);
  int64_t in_a_row() const { return in_a_row_; }

 private:
  int64_t most_, in_a_row_;
  std::array<double, 10> scales_{};  // a ring
  int64_t seen_ = 0;
};

}  // namespace gt
