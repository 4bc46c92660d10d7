// Routed feed-forward layer: a router chooses the experts of each token, which are split over the expert axis; each of
// their MLPs has its channels split over the tensor axis like a dense one. Every TP rank routes all rows alike in f32.
// Its outputs and, through the weights of the experts, the gradients of its router are partial sums: one reduction at
// the border completes each.
#pragma once
#include <optional>

#include "autograd/expert_ops.h"
#include "model/layers/feed_forward.h"
#include "parallel/tensor/collective_ops.h"
#include "parallel/tensor/expert_exchange.h"

namespace gt {

// The weight of a router or of experts, alone in its module.
struct RouterWeight : Module {
  RouterWeight(std::string name, const Build& b)
      : Module(std::move(name)), weight(param("weight", b)), bias(param_if("bias", b)) {}
  Parameter& weight;
  Parameter* const bias;  // of a router; nullptr: none
};

class Moe : public FeedForward {
 public:
  Moe(std::string name, const Build&);
  const Fp8Scaling* fp8_scaling() const override { return nullptr; }
  RouterLoad* load() override { return load_ ? &*load_ : nullptr; }
  Var operator()(Tape&, const ops::Normed&, const MicroBatch&, ops::Keep) override;

 private:
  ops::Routing routed(Tape&, Var x, const MicroBatch&);

  const Activation kind_;
  const bool gated_;
  const int64_t top_k_;
  const Gate gate_;
  const int balance_;  // index of the balance loss in MicroBatch::sums; -1: none
  const TensorAxis axis_;
  const ExpertAxis experts_;
  RouterWeight router_, up_, down_;
  std::optional<RouterLoad> load_;  // where the bias moves
};

}  // namespace gt
