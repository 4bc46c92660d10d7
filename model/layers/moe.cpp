#include "model/layers/moe.h"

#include "parallel/proof/claim.h"

namespace gt {

Moe::Moe(std::string name, const Build& b)
    : FeedForward(name),
      kind_(b.config().activation),
      gated_(b.config().gated),
      top_k_(b.config().moe.top_k),
      gate_{b.config().moe.gate, b.config().moe.normalize, static_cast<float>(b.config().moe.scale),
            static_cast<int32_t>(b.config().moe.groups), static_cast<int32_t>(b.config().moe.top_groups)},
      balance_(b.config().moe.balance > 0 ? b.model.loss_sum("balance", b.model.param(name + ".router.weight").layer)
                                          : -1),
      axis_(b.tensor()),
      experts_{b.mesh.group(Axis::kEp), b.device, b.config().moe.experts, b.expert_load},
      router_(name + ".router", b),
      up_(name + ".experts.up", b),
      down_(name + ".experts.down", b) {
  child(router_);
  child(up_);
  child(down_);
  if (router_.bias != nullptr && b.config().moe.bias_rate > 0) load_ = RouterLoad{router_.bias, {}};
}

ops::Routing Moe::routed(Tape& t, Var x, const MicroBatch& mb) {
  const Var logits = ops::router_logits(t, ops::cast(t, x, DType::kF32), router_.weight);
  // Every token of a step is recorded once: evaluation and a forward pass that runs again record nothing.
  const Tensor bias = router_.bias != nullptr ? router_.bias->value : Tensor{};
  const Tensor counts = load_ && t.recording() ? load_->counts : Tensor{};
  const ops::Routing r = ops::route(t, logits, top_k_, gate_, bias, counts);
  if (balance_ < 0 || !mb.sums) return r;
  // Every TP rank computes this loss of all rows, and the gradients of the logits are summed over them: one adds it.
  const bool adds = t.recording() && axis_.group.rank() == 0;
  const Tensor dlogits = adds ? t.scratch(logits.value.shape, DType::kF32) : Tensor{};
  const Tensor seed = adds ? mb.dloss.slice(balance_, 1) : Tensor{};
  ops::keep_loss(t, mb, balance_, ops::balance_loss(t, r, mb.seq, seed, dlogits));
  if (adds) proof::held_by_one(dlogits, Axis::kTp);
  return r;
}

Var Moe::operator()(Tape& t, const ops::Normed& n, const MicroBatch& mb, ops::Keep keep) {
  const bool split = axis_.splits_rows();
  const Var all = split ? ops::gather_rows(t, n.out, axis_.group) : ops::copy_to_group(t, n.out, axis_.group);
  const ops::Routing r = routed(t, all, mb);
  const ops::ExpertInputs in = ops::send_to_experts(t, ops::cast(t, all, up_.weight.dtype), r, experts_);
  const Var h = ops::expert_linear(t, in.tokens, in.routing, up_.weight);
  if (split) ops::regather_rows(t, n.out, all, axis_.group);
  const ops::ExpertActivated a = ops::expert_activate(t, h, in.routing, kind_, gated_, keep);
  const auto lifetime = [](bool transient) { return transient ? ops::Output::kTransient : ops::Output::kKept; };
  Var y = ops::expert_combine(t, a.out, in.routing, down_.weight, lifetime(split || experts_.group.size() > 1));
  ops::discard(t, a, keep);
  y = ops::return_to_tokens(t, in, y, lifetime(split));
  if (axis_.group.size() == 1) return y;
  return split ? ops::scatter_rows(t, y, axis_.group) : ops::reduce_from_group(t, y, axis_.group);
}

}  // namespace gt
