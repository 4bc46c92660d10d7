// Quantizer state of quantization-aware training on this rank. Each applied step updates
//   limit = 0.99 limit + 0.01 step_amax, initially step_amax (Jacob et al. 2018, "Quantization and Training of Neural
//   Networks").
// step_amax is the amax of the step over all ranks of the pipeline stage, so it does not depend on the layout.
#pragma once
#include <vector>

#include "autograd/quantizer_state.h"
#include "kernels/backend.h"
#include "kernels/core/memory.h"
#include "parallel/mesh.h"
#include "parallel/zero/shard_view.h"

namespace gt {

class QuantizerStates {
 public:
  // Allocates the states' memory, limits 0. The states must outlive this object.
  QuantizerStates(std::vector<QuantizerState*>, const Mesh&, const Backend&, Stream);
  void begin_step();                                 // zeroes step_amax
  void end_step();                                   // of an applied step; collective over the pipeline stage
  void append_views(std::vector<ShardView>&) const;  // "qat/limit/<state>", f32 [1]
  int64_t bytes() const { return memory_.bytes(); }

 private:
  Tensor limits() const { return memory_.tensor({count()}, DType::kF32); }
  Tensor step_amax() const { return memory_.tensor({count()}, DType::kF32, count() * size_of(DType::kF32)); }
  int64_t count() const { return static_cast<int64_t>(ranges_.size()); }
  std::vector<QuantizerState*> ranges_;
  const Mesh& mesh_;
  const Backend& backend_;
  Stream stream_;
  Buffer memory_;  // limits, then step_amax
  std::vector<float> host_;
};

}  // namespace gt
