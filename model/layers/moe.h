// Routed feed-forward layer: a router chooses the experts of each token, which are split over the expert axis; each of
// their MLPs has its channels split over the tensor axis like a dense one. Every TP rank routes all rows alike in f32.
// Its outputs and, through the weights of the experts, the gradients of its router are partial sums: one reduction at
// the border completes each.
#pragma once
#include "autograd/expert_ops.h"
#include "model/layers/feed_forward.h"
#include "parallel/tensor/collective_ops.h"
#include "parallel/tensor/expert_exchange.h"

namespace gt {

class Moe : public FeedForward {
 public:
  Moe(std::string name, const Build&);
  const Fp8Scaling* fp8_scaling() const override { return nullptr; }
  Var operator()(Tape&, const ops::Normed&, const MicroBatch&, ops::Keep) override;

 private:
  struct Weight : Module {
    Weight(std::string name, const Build& b) : Module(std::move(name)), weight(param("weight", b)) {}
    Parameter& weight;
  };
  ops::Routing routed(Tape&, Var x, const MicroBatch&);

  const Activation kind_;
  const bool gated_;
  const int64_t top_k_;
  const Gate gate_;
  const int balance_;  // index of the balance loss in MicroBatch::sums; -1: none
  const TensorAxis axis_;
  const ExpertAxis experts_;
  Weight router_, up_, down_;
};

}  // namespace gt
