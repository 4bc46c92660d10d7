// Records the steps of a learning-rate range test and suggests a peak (optim/lr_range.h).
#pragma once
#include <string>
#include <vector>

#include "launch/engine/engine.h"
#include "launch/options/console_text.h"
#include "optim/lr_range.h"

namespace gt {

class RangeTest {
 public:
  void add(const StepResult&);
  bool diverged() const { return has_diverged(points_); }
  // Writes `dir`/lr_range.csv and returns the rows of the end block.
  Rows report(const std::string& dir) const;

 private:
  std::vector<RangePoint> points_;  // every step
};

}  // namespace gt
