// Optimizers over flat tensor ranges and device scalars, independent of layers and ZeRO stages. Equations:
// kernels/optimizer_ops.h; sources: optim/README.md.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/memory.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer_options.h"
#include "parallel/mesh.h"
#include "parallel/zero/param_store.h"

namespace gt {

// LAMB's trust ratio of one logical tensor, as of the last step.
struct TrustRatio {
  std::string tensor;
  float ratio = 1;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Updates every tensor range of the store it was made for. `scalars`: f32 [scalar_rows(), kNumScalars] on the device
  // (kernels/ops.h StepScalar). If kSkip is nonzero, nothing is written. Collective over the pipeline stage for
  // optimizers that need whole tensors (LAMB).
  virtual void step(Tensor scalars, Stream) = 0;
  // Views of all state, group names "optim/<state>".
  virtual std::vector<ShardView> state_views(const ParamStore&) const = 0;
  virtual int64_t state_bytes() const = 0;
  // Bytes of other device memory: segment tables, workspace.
  virtual int64_t work_bytes() const = 0;
  // Fills the scalars of applied step t = 1, 2, …: lr, betas and values derived from them. Betas are those of the
  // point, or the optimizer's own if the schedule sets none.
  virtual void fill_scalars(int64_t t, const LrPoint&, float* scalars) const = 0;
  // Trust ratios of the last applied step, for the tensors that this rank updates (ZeRO: some of them). Blocks until
  // the device is idle. Empty except for LAMB.
  virtual std::vector<TrustRatio> trust_ratios(Stream) const { return {}; }
};

std::vector<std::string> optimizer_names();

// Throws kUsage on an unknown type or LAMB variant, listing the known ones. The mesh and the store must outlive the
// result.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions&, const ParamStore&, const Mesh&, const Backend&,
                                          Stream);

}  // namespace gt
