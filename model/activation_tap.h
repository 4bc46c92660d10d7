// Observer of the activations of a forward pass, for verification and statistics. A stage calls it with the residual
// stream after every module. Without an observer a stage does no work for it.
#pragma once
#include <string>

#include "kernels/core/batch.h"

namespace gt {

class ActivationObserver {
 public:
  virtual ~ActivationObserver() = default;
  // The residual stream or branch that `module` has just made, [rows, hidden] with the rows of the microbatch that this
  // rank holds (all, or its share under sequence parallelism); "head": f64, the microbatch's sums of losses and,
  // without recording, of hits. A block that is recomputed is shown again.
  virtual void activation(const std::string& module, Tensor x, const MicroBatch& mb) = 0;
};

}  // namespace gt
