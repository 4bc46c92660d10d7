// Ops of routed feed-forward layers (Mixture of Experts). Part of the op list (kernels/ops.h), whose conventions hold.
// n tokens, E experts, k chosen of each token, R = n k slots: slot t k + j is the j-th choice of token t. Rows of
// experts are in expert order: slots sorted by expert, those of one expert ascending.
#pragma once
#include <cstdint>

#include "kernels/core/tensor.h"
#include "kernels/operands.h"

namespace gt {

enum class Activation : uint8_t;  // kernels/ops.h

// Scores of experts: softmax over all of them, or the sigmoid of each logit.
enum class GateKind : uint8_t { kSoftmax, kSigmoid };

// How scores become weights: w = scale * s / (sum of the chosen s), or scale * s. Normalized softmax scores are the
// softmax over the chosen logits alone. With groups of equal size (DeepSeek-V3, arXiv 2412.19437), a token's experts
// are those of its `top_groups` best groups, by the sum of a group's two largest scores.
struct Gate {
  GateKind kind = GateKind::kSoftmax;
  bool normalize = true;
  float scale = 1;
  int32_t groups = 1, top_groups = 1;
};

// Chooses the k experts with the largest logits; of equal ones the lower index. logits [n, E] f32; experts [n, k] i32,
// in descending order of logits; weights [n, k] f32. A token of logits that are not numbers gets experts 0 .. k - 1.
// With sigmoid scores and a bias [E] f32 or groups, those with the largest scores plus bias: weights have no bias.
// counts [E] f64 += tokens of each expert; empty: not counted.
struct Route {
  Tensor logits, experts, weights;
  Gate gate;
  Tensor bias, counts;
  GT_OPERANDS(.in("logits", o.logits)
                  .in("bias", o.bias)
                  .control("experts", o.experts)
                  .out("weights", o.weights)
                  .out("counts", o.counts, true))
};
// dlogits [n, E] f32 (+)= gradient of `weights` through Route. dweights [n, k] f32.
struct RouteGrad {
  Tensor logits, experts, dweights, dlogits;
  Gate gate;
  bool accumulate = false;
  GT_OPERANDS(.in("logits", o.logits)
                  .control("experts", o.experts)
                  .in("dweights", o.dweights)
                  .out("dlogits", o.dlogits, o.accumulate))
};

// Balance of the experts of each sequence (DeepSeek-V3, arXiv 2412.19437, eq. 17 to 20): loss [n / seq] f32 =
// E sum_i f_i P_i, f_i = (slots of expert i) / (k seq), P_i = mean over the sequence's tokens of s_i / (sum of s); 1 if
// all experts are chosen alike. dlogits [n, E] f32 = seed[0] * its gradient, through P alone; empty: not computed.
// Requires: whole sequences.
struct BalanceLoss {
  Tensor logits, experts, seed, loss, dlogits;
  int64_t seq = 1;
  GateKind kind = GateKind::kSoftmax;
  GT_OPERANDS(.in("logits", o.logits)
                  .control("experts", o.experts)
                  .in("seed", o.seed)
                  .out("loss", o.loss)
                  .out("dlogits", o.dlogits))
};

// Sorts the slots of experts [n, k] by expert, stably. All i32: slots [R] in expert order; rows [n, k], of each slot
// its index in `slots`; offsets [E + 1], expert e's rows are [offsets[e], offsets[e + 1]).
struct GroupRows {
  Tensor experts, slots, rows, offsets;
  GT_OPERANDS(.control("experts", o.experts)
                  .control("slots", o.slots)
                  .control("rows", o.rows)
                  .control("offsets", o.offsets))
};

// Slots of a rank's tokens by the rank of their expert, of p: rank d has experts [d E / p, (d + 1) E / p). A token is
// sent once to each rank that has an expert of it. experts [n, k]. All i32: slots [R] by rank, those of one rank
// ascending; rows [n, k], of each slot its index in `slots`; copies [n min(k, p)], the tokens that are sent, by rank,
// ascending: what there are of them, at the front; parts [R, 2], of each of `slots` the index of its token among the
// copies for its rank, and its expert there; counts [p, 2], copies and slots for each rank.
struct SendRows {
  Tensor experts, slots, rows, copies, parts, counts;
  int64_t count = 0;  // E
  GT_OPERANDS(.control("experts", o.experts)
                  .control("slots", o.slots)
                  .control("rows", o.rows)
                  .control("copies", o.copies)
                  .control("parts", o.parts)
                  .control("counts", o.counts))
};
// The same on the ranks of the experts: parts [R, 2] and counts [p, 2] from each rank, in the order of ranks, as
// SendRows makes them; the copies lie one behind the other. Sorts the slots by expert, stably. All i32: slots [R] in
// expert order, tokens [R] the copy of each of them, rows [R, 1], of each part its index in `slots`, offsets [E / p +
// 1] as of GroupRows.
struct ReceiveRows {
  Tensor parts, counts, slots, tokens, rows, offsets;
  GT_OPERANDS(.control("parts", o.parts)
                  .control("counts", o.counts)
                  .control("slots", o.slots)
                  .control("tokens", o.tokens)
                  .control("rows", o.rows)
                  .control("offsets", o.offsets))
};

// out [R, N] = each row of a times the matrix of its expert: b [E, K, N], or [E, N, K] with trans_b. a [R, K] in expert
// order or, with slots, [n, K]: row r then is that of token slots[r] / k. a, b, out: T. A row of out depends on its row
// of a and its expert alone, not on how many rows the expert has: each element is one fma chain in ascending k.
struct GroupedGemm {
  Tensor a, b, slots, offsets, out;
  int64_t top_k = 1;
  bool trans_b = false;
  // Forward GEMMs use the transposed weight.
  Direction direction() const { return trans_b ? Direction::kForward : Direction::kBackward; }
  GT_OPERANDS(.in("a", o.a).in("b", o.b).control("slots", o.slots).control("offsets", o.offsets).out("out", o.out))
};
// Weight gradients: out [E, M, N] G (+)= for each expert the sum over its rows of a^T b. a [., M], b [., N] T. One has
// R rows in expert order, the other (a with gather_a, else b) is read by token as in GroupedGemm. Without accumulate,
// experts without rows get 0.
struct GroupedGemmGrad {
  Tensor a, b, slots, offsets, out;
  int64_t top_k = 1;
  bool gather_a = false, accumulate = false;
  GT_OPERANDS(.in("a", o.a)
                  .in("b", o.b)
                  .control("slots", o.slots)
                  .control("offsets", o.offsets)
                  .out("out", o.out, o.accumulate))
};

// Activate (kernels/ops.h) of x [R, F], gated [R, 2F], times the weight of each row's slot: out [R, F]. So no expert's
// output is needed for the gradient of the weights. weights [n, k] f32; slots [R].
struct ExpertActivate {
  Tensor x, weights, slots, out;
  Activation kind{};
  bool gated = true;
  GT_OPERANDS(.in("x", o.x).in("weights", o.weights).control("slots", o.slots).out("out", o.out))
};
// Writes all of dx, laid out like x, and of dweights [n, k] f32. dx may alias x.
struct ExpertActivateGrad {
  Tensor x, weights, slots, dout, dx, dweights;
  Activation kind{};
  bool gated = true;
  GT_OPERANDS(.in("x", o.x)
                  .in("weights", o.weights)
                  .control("slots", o.slots)
                  .in("dout", o.dout)
                  .out("dx", o.dx)
                  .out("dweights", o.dweights))
};

// out [n, C] (+)= sum of rows [n, k] of x [R, C] for each token, in the order of its slots, in f32. x, out: T.
struct CombineRows {
  Tensor x, rows, out;
  bool accumulate = false;
  GT_OPERANDS(.in("x", o.x).control("rows", o.rows).out("out", o.out, o.accumulate))
};

// Lines of GT_OPS (kernels/ops.h).
#define GT_EXPERT_OPS(X)                                                                          \
  X(route, Route, kHigh, kForward, kElementwise, kOfParameter, kPart)                             \
  X(route_grad, RouteGrad, kHigh, kBackward, kElementwise, kOfParameter, kPart)                   \
  X(balance_loss, BalanceLoss, kHigh, kForward, kLoss, kLoss, kPart)                              \
  X(group_rows, GroupRows, kKeep, kForward, kElementwise, kOfParameter, kPart)                    \
  X(send_rows, SendRows, kKeep, kForward, kElementwise, kOfParameter, kPart)                      \
  X(receive_rows, ReceiveRows, kKeep, kForward, kElementwise, kOfParameter, kPart)                \
  X(grouped_gemm, GroupedGemm, kLow, kByArguments, kGemm, kOfParameter, kOwn)                     \
  X(grouped_gemm_grad, GroupedGemmGrad, kLow, kBackward, kGemm, kOfParameter, kOwn)               \
  X(expert_activate, ExpertActivate, kHigh, kForward, kElementwise, kActivation, kPass)           \
  X(expert_activate_grad, ExpertActivateGrad, kHigh, kBackward, kElementwise, kActivation, kPass) \
  X(combine_rows, CombineRows, kKeep, kNeither, kElementwise, kOfParameter, kPart)

}  // namespace gt
