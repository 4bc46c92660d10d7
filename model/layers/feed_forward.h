// The feed-forward half of a block: what stands behind its second norm and adds to the residual stream.
#pragma once
#include <memory>
#include <string>

#include "autograd/ops.h"
#include "model/module.h"

namespace gt {

// Load of the experts of a layer on this rank, by which the engine moves the bias of its router.
struct RouterLoad {
  Parameter* bias;  // [E] f32
  Tensor counts;    // [E] f64, owned by the engine: tokens of each expert in this step, of all its microbatches
};

class FeedForward : public Module {
 public:
  using Module::Module;
  virtual ~FeedForward() = default;
  virtual const Fp8Scaling* fp8_scaling() const = 0;  // as ColumnLinear::fp8_scaling
  virtual RouterLoad* load() { return nullptr; }      // nullptr: there is no bias that moves
  // Returns what it adds, of the rows that this rank holds between tensor-parallel layers.
  virtual Var operator()(Tape&, const ops::Normed&, const MicroBatch&, ops::Keep) = 0;
};

// Builds that of the block whose feed-forward is named `name`: "layers.3.mlp".
std::unique_ptr<FeedForward> make_feed_forward(const std::string& name, const Build&);

}  // namespace gt
