// down(gelu(up(x))): column-parallel up, row-parallel down, nothing to communicate between them.
#pragma once
#include "model/layers/linear.h"

namespace gt {

class Mlp : public Module {
 public:
  Mlp(std::string name, int64_t hidden, int64_t inner, float down_std, const Build& b)
      : Module(name),
        axis_(b.tensor()),
        up_(name + ".up", hidden, inner, b),
        down_(name + ".down", inner, hidden, down_std, b) {
    child(up_);
    child(down_);
  }
  Var operator()(Tape& t, Var x, ops::Keep keep) {
    x = up_.prepare(t, x);
    const Var y = on_all_rows(t, x, axis_, [&](Var all) {
      if (down_.fp8 != nullptr) return encoded(t, all, keep);
      // What enters `down` is quantized between the two products.
      if (down_.input != nullptr) return down_.product(t, ops::gelu(t, up_.product(t, all, keep)), keep);
      return ops::mlp(t, all, up_.weight, up_.bias, down_.weight, down_.fused_bias(), keep, down_.output());
    });
    return down_.finish(t, y);
  }

 private:
  // The GELU stands alone: what it makes is encoded, and given back.
  Var encoded(Tape& t, Var all, ops::Keep keep) {
    const Var x = up_.product(t, all, keep), h = ops::gelu(t, x, ops::Output::kTransient);
    const Var y = down_.product(t, h, keep);
    if (keep == ops::Keep::kInputs)
      ops::discard_gelu(t, x, h);
    else
      t.discard(h);
    return y;
  }
  TensorAxis axis_;
  ColumnLinear up_;
  RowLinear down_;
};

}  // namespace gt
