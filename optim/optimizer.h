// An optimizer sees flat ranges and device scalars; it knows nothing of layers, ranks or ZeRO stages.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/memory.h"
#include "parallel/zero/param_store.h"

namespace gt {

struct OptimizerOptions {
  std::string type = "adamw";  // adamw | adam
  float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0.01f;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // One update of every range of the store. `scalars`: f32 [kNumScalars] on the device (kernels/ops.h StepScalar); a
  // non-zero kSkip writes nothing.
  virtual void step(ParamStore&, Tensor scalars, Stream) = 0;
  // Views of all state, group names "optim/<state>".
  virtual std::vector<ShardView> state_views(const ParamStore&) const = 0;
  virtual int64_t state_bytes() const = 0;
  // Host-side scalars of applied step t = 1, 2, …: momentum and bias corrections.
  virtual void fill_scalars(int64_t t, float* scalars) const = 0;
};

// Throws kUsage on an unknown type, listing the known ones.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions&, const ParamStore&, const Backend&, Stream);

}  // namespace gt
