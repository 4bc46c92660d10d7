// The feed-forward layer, down(act(up(x))): column-parallel up, row-parallel down, nothing to communicate between them.
#pragma once
#include "model/layers/linear.h"

namespace gt {

class Mlp : public Module {
 public:
  Mlp(std::string name, const Build& b) : Module(name), up_(name + ".up", b), down_(name + ".down", b) {
    GT_CHECK(b.config().activation == Activation::kGelu && !b.config().gated, "an MLP without its op");
    child(up_);
    child(down_);
  }
  const CodeScale* codes() const { return up_.codes(); }  // as ColumnLinear::codes
  Var operator()(Tape& t, const ops::Normed& n, ops::Keep keep) {
    return down_.finish(t, up_.on_all_rows(t, n, [&](const Operand& all) {
      if (GeluPair::fuses(up_, down_)) return GeluPair::run(t, all, up_, down_, keep);
      return down_.product(t, ops::gelu(t, up_.product(t, all, keep)), keep);
    }));
  }

 private:
  ColumnLinear up_;
  RowLinear down_;
};

}  // namespace gt
