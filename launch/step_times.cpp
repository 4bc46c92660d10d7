#include "launch/step_times.h"

#include <algorithm>

namespace gt {

double StepTimes::busy(int stage) const {
  return at(stage, kForwardTime) + at(stage, kBackwardTime) + at(stage, kInputGradTime) + at(stage, kWeightGradTime);
}

double StepTimes::mean_busy() const {
  double sum = 0;
  for (int k = 0; k < stages(); ++k) sum += busy(k) + at(k, kOptimizerTime);
  return stages() > 0 ? sum / stages() : 0;
}

double StepTimes::pipeline_seconds() const {
  double most = 0;
  for (int k = 0; k < stages(); ++k) most = std::max(most, at(k, kPipelineTime));
  return most;
}

double StepTimes::pipeline_bubble() const {
  double sum = 0;
  for (int k = 0; k < stages(); ++k) sum += busy(k);
  const double whole = pipeline_seconds() * stages();
  return whole > 0 ? 1 - sum / whole : 0;
}

}  // namespace gt
