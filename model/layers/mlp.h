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
  const CodeScale* codes() const { return up_.codes(); }  // as ColumnLinear::codes
  Var operator()(Tape& t, const ops::Normed& n, ops::Keep keep) {
    if (n.codes) return down_.finish(t, of_codes(t, up_.for_group(t, n.codes), keep));
    const Var y = on_all_rows(t, up_.prepare(t, n.out), axis_, [&](Var all) {
      if (up_.fp8 != nullptr)
        return of_codes(t, ops::encode(t, all, CodesOf::kPlain, up_.fp8->input, ops::Keep::kInputs), keep);
      // What enters `down` is quantized between the two products.
      if (down_.input != nullptr) return down_.product(t, ops::gelu(t, up_.product(t, all, keep)), keep);
      return ops::mlp(t, all, up_.weight, up_.bias, down_.weight, down_.fused_bias(), keep, down_.output());
    });
    return down_.finish(t, y);
  }

 private:
  Var of_codes(Tape& t, const Coded& x, ops::Keep keep) {
    return ops::fp8_mlp(t, x, {up_.weight, &up_.bias, *up_.fp8}, {down_.weight, down_.fused_bias(), *down_.fp8}, keep,
                        down_.output());
  }
  TensorAxis axis_;
  ColumnLinear up_;
  RowLinear down_;
};

}  // namespace gt
