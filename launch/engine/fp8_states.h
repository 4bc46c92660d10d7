// Delayed scaling of this rank's FP8 linear layers. Inputs and output gradients are scaled by the amax of the last 1024
// applied steps, over all microbatches and all ranks of the pipeline stage. Scales thus do not depend on the layout,
// and no tensor needs a separate amax pass. A tensor without history is scaled by its current amax.
#pragma once
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/memory.h"
#include "parallel/mesh.h"
#include "parallel/tensor/fp8_linear.h"
#include "parallel/zero/shard_view.h"

namespace gt {

class Fp8States {
 public:
  static constexpr int64_t kSteps = 1024;
  // Allocates the states' memory; the states must outlive this object. An empty vector makes every call a no-op.
  Fp8States(std::vector<Fp8State*>, const Mesh&, const Backend&, Stream);
  void begin_step();               // zeroes step_amax
  void end_step(int64_t applied);  // of applied step number `applied`, from 1; collective over the pipeline stage
  void adopt();                    // call after histories were overwritten (checkpoint load, tests)
  void append_views(std::vector<ShardView>&) const;  // "fp8/amax/<state>", f32 [1024]: amax of step t at (t-1) mod 1024
  int64_t bytes() const { return memory_.bytes(); }

 private:
  int64_t count() const { return static_cast<int64_t>(ranges_.size()); }
  Tensor step_amax() const { return memory_.tensor({count()}, DType::kF32); }
  Tensor amax() const { return memory_.tensor({count()}, DType::kF32, count() * size_of(DType::kF32)); }
  Tensor history() const { return memory_.tensor({count(), kSteps}, DType::kF32, 2 * count() * size_of(DType::kF32)); }
  void find_histories();
  std::vector<Fp8State*> ranges_;
  const Mesh& mesh_;
  const Backend& backend_;
  Stream stream_;
  Buffer memory_;  // step_amax, amax, history
  std::vector<float> host_;
  bool all_have_history_ = false;
};

}  // namespace gt
