// MLP: down(act(up(x))), or gated down(act(gate(x)) * up(x)) with gate and up in one GEMM. Column-parallel up and
// row-parallel down need no communication in between.
#pragma once
#include "model/layers/feed_forward.h"
#include "model/layers/linear.h"

namespace gt {

class Mlp : public FeedForward {
 public:
  Mlp(std::string name, const Build& b)
      : FeedForward(name),
        kind_(b.config().activation),
        gated_(b.config().gated),
        up_(name + ".up", b),
        down_(name + ".down", b),
        fused_(kind_ == Activation::kGelu && !gated_ && GeluPair::fuses(up_, down_)) {
    child(up_);
    child(down_);
  }
  const Fp8Scaling* fp8_scaling() const override { return up_.fp8_scaling(); }
  Var operator()(Tape& t, const ops::Normed& n, const MicroBatch& mb, ops::Keep keep) override {
    return down_.finish(t, up_.on_all_rows(t, n, [&](const Operand& all) {
      if (fused_) return GeluPair::run(t, all, up_, down_, keep);
      const Var h = up_.matmul(t, all, mb, keep);
      if (kind_ == Activation::kGelu && !gated_) return down_.matmul(t, ops::gelu(t, h), mb, keep);
      const ops::Activated a = ops::activate(t, h, kind_, gated_, down_.kept(keep));
      const Var y = down_.matmul(t, a.out, mb, keep);
      ops::discard(t, a, down_.kept(keep));
      return y;
    }));
  }

 private:
  const Activation kind_;
  const bool gated_;
  ColumnLinear up_;
  RowLinear down_;
  const bool fused_;  // one op, with the activation in GEMM epilogues
};

}  // namespace gt
