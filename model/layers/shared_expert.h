// An MLP that computes every token, beside the experts that a router chooses (DeepSeekMoE, arXiv 2401.06066). Split
// over the tensor axis like a dense one, which completes its sum: ranks add it once.
#pragma once
#include "model/layers/linear.h"
#include "model/layers/mlp.h"
#include "model/layers/moe.h"

namespace gt {

// MLP whose result is multiplied by the sigmoid of a logit of each token, like that of the only expert of a router: the
// weight is applied between both linear layers, and each TP rank has a partial gradient of the logits.
class GatedMlp : public FeedForward {
 public:
  GatedMlp(const std::string& name, const Build& b)
      : FeedForward(name),
        kind_(b.config().activation),
        gated_(b.config().gated),
        gate_(name + ".gate", b),
        up_(name + ".up", b),
        down_(name + ".down", b) {
    child(gate_);
    child(up_);
    child(down_);
  }
  const Fp8Scaling* fp8_scaling() const override { return nullptr; }
  Var operator()(Tape& t, const ops::Normed& n, const MicroBatch& mb, ops::Keep keep) override {
    return down_.finish(t, up_.on_all_rows(t, n, [&](const Operand& all) {
      const Var logits = ops::router_logits(t, ops::cast(t, all.x, DType::kF32), gate_.weight);
      const ops::Routing r = ops::route(t, logits, 1, {.kind = GateKind::kSigmoid, .normalize = false});
      const Var h = up_.matmul(t, all, mb, keep);
      const ops::ExpertActivated a = ops::expert_activate(t, h, r, kind_, gated_, keep);
      const Var y = down_.matmul(t, a.out, mb, keep);
      ops::discard(t, a, keep);
      return y;
    }));
  }

 private:
  const Activation kind_;
  const bool gated_;
  RouterWeight gate_;
  ColumnLinear up_;
  RowLinear down_;
};

// The sum of both.
class MoeWithShared : public FeedForward {
 public:
  MoeWithShared(const std::string& name, const Build& b) : FeedForward(name), routed_(name, b) {
    if (b.config().moe.shared_gate)
      shared_ = std::make_unique<GatedMlp>(name + ".shared", b);
    else
      shared_ = std::make_unique<Mlp>(name + ".shared", b);
    child(routed_);
    child(*shared_);
  }
  const Fp8Scaling* fp8_scaling() const override { return nullptr; }
  RouterLoad* load() override { return routed_.load(); }
  Var operator()(Tape& t, const ops::Normed& n, const MicroBatch& mb, ops::Keep keep) override {
    const Var y = routed_(t, n, mb, keep);
    return ops::add(t, y, (*shared_)(t, n, mb, keep));
  }

 private:
  Moe routed_;
  std::unique_ptr<FeedForward> shared_;
};

}  // namespace gt
