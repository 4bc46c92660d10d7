// The feed-forward half of a block: what stands behind its second norm and adds to the residual stream.
#pragma once
#include <memory>
#include <string>

#include "autograd/ops.h"
#include "model/module.h"

namespace gt {

class FeedForward : public Module {
 public:
  using Module::Module;
  virtual ~FeedForward() = default;
  virtual const Fp8Scaling* fp8_scaling() const = 0;  // as ColumnLinear::fp8_scaling
  // Returns what it adds, of the rows that this rank holds between tensor-parallel layers.
  virtual Var operator()(Tape&, const ops::Normed&, const MicroBatch&, ops::Keep) = 0;
};

// Builds that of the block whose feed-forward is named `name`: "layers.3.mlp".
std::unique_ptr<FeedForward> make_feed_forward(const std::string& name, const Build&);

}  // namespace gt
