// Layer norm with the residual add in front of it.
#pragma once
#include "autograd/ops.h"
#include "model/module.h"

namespace gt {

class Norm : public Module {
 public:
  Norm(std::string name, int64_t hidden, const Build& b)
      : Module(std::move(name)), gamma_(param("weight", {hidden}, b.whole(), {Init::Kind::kOne}, b, b.precision.norm())),
        beta_(param("bias", {hidden}, b.whole(), {Init::Kind::kZero}, b, b.precision.norm())) {}
  // scale: of the codes that the layer behind it reads instead of values (ColumnLinear::codes).
  ops::Normed operator()(Tape& t, Var x, const Var* delta, ops::Keep keep = ops::Keep::kOutputs,
                         const RowDrop& drop = {}, const CodeScale* scale = nullptr) {
    return ops::add_norm(t, x, delta, {&gamma_, &beta_}, keep, drop, scale);
  }
  // Nothing reads n.out any more in this forward; keep: as the norm was made.
  void discard(Tape& t, const ops::Normed& n, ops::Keep keep) { ops::discard(t, n, {&gamma_, &beta_}, keep); }

 private:
  Parameter &gamma_, &beta_;
};

}  // namespace gt
