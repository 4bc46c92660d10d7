// Differentiable ops of routed layers (kernels/expert_ops.h). n tokens, k chosen experts of each, R = n k rows in
// expert order. Of experts on several ranks (parallel/tensor/expert_exchange.h) a rank computes R slots of m tokens,
// each with one expert: rows and gradients of tokens are then [R, C] where they would be [n, C].
#pragma once
#include "autograd/ops.h"

namespace gt::ops {

// Which experts compute which tokens. Lives until the backward of its microbatch is complete.
struct Routing {
  Var logits, weights;  // [n, E], [n, k], f32
  Tensor experts, slots, rows, offsets;
  Gate gate;
  Tensor tokens = {};  // i32 [R], of each row its token, if a rank has slots of other ranks; empty: slots[r] / k
  int64_t bound = 0;   // the most rows that there can be, if the data decides; 0: R
};

// logits [n, E] = x w^T in f32: x [n, C] and w f32. A token's logits do not depend on the number of tokens.
Var router_logits(Tape&, Var x, Parameter& w);
// bias, counts: as of Route; no gradient reaches the bias.
Routing route(Tape&, Var logits, int64_t top_k, const Gate&, Tensor bias = {}, Tensor counts = {});
// The balance loss of the experts, f64 [1]: the sum over the sequences of the microbatch. dlogits [n, E] f32, which
// lives as long: receives seed [1], on the device, times its gradient, which is added to that of the logits. Empty: not
// computed.
Var balance_loss(Tape&, const Routing&, int64_t seq, Tensor seed, Tensor dlogits);

// [R, out] = each row's token x [n, in], times w [E, out, in]^T of its expert. The gradient of x has the rows of
// `rows`.
Var expert_linear(Tape&, Var x, const Routing&, Parameter& w);
// act(x), gated or not, times each row's weight. No other op may read x. kInputs: `out` is recomputed; discard it like
// a norm's.
struct ExpertActivated {
  Var in, weights, out;
  Tensor slots;
  Activation kind;
  bool gated;
};
ExpertActivated expert_activate(Tape&, Var x, const Routing&, Activation, bool gated, Keep = Keep::kOutputs);
void discard(Tape&, const ExpertActivated&, Keep);
// [n, out] = for each token the sum of its rows of x [R, in], times w [E, out, in]^T of their experts. Its gradient has
// the rows of tokens: [m, out] of m tokens of several ranks.
Var expert_combine(Tape&, Var x, const Routing&, Parameter& w, Output = Output::kKept);

}  // namespace gt::ops
