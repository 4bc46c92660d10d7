// Norm fused with the residual add before it.
#pragma once
#include "autograd/ops.h"
#include "model/module.h"

namespace gt {

class Norm : public Module {
 public:
  // scale: scaling of the FP8 data that the next layer reads instead of values (ColumnLinear::fp8_scaling).
  Norm(std::string name, const Build& b, const Fp8Scaling* scale = nullptr)
      : Module(std::move(name)),
        weights_{.gamma = &param("weight", b),
                 .beta = param_if("bias", b),
                 .kind = b.config().norm,
                 .eps = static_cast<float>(b.config().norm_eps),
                 .gamma_offset = b.config().gamma_offset()},
        scale_(scale) {}
  ops::Normed operator()(Tape& t, Var x, const Var* delta, ops::Keep keep = ops::Keep::kOutputs,
                         const RowDrop& drop = {}) {
    return ops::add_norm(t, x, delta, weights_, kept(keep), drop, scale_);
  }
  // Frees n.out after its last use in this forward. keep: the value passed when the norm ran.
  void discard(Tape& t, const ops::Normed& n, ops::Keep keep) { ops::discard(t, n, weights_, kept(keep)); }

 private:
  ops::Keep kept(ops::Keep keep) const {
    return scale_ != nullptr && keep == ops::Keep::kOutputs ? ops::Keep::kFp8 : keep;
  }
  const ops::NormWeights weights_;
  const Fp8Scaling* const scale_;
};

}  // namespace gt
