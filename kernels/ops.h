// THE op table: every primitive the trainer can run, on every device. One struct of arguments and one function pointer
// per op. A backend is a constexpr OpTable. Shapes: n tokens, C hidden, V local vocabulary.
//
// Types. T is one of f32, bf16, f16: how an op's main tensors are stored; arithmetic is f32, and results are rounded
// once to nearest even (f16: overflow gives inf). "T or f32" is decided tensor by tensor; H is a half type beside f32.
// Unless said otherwise all tensors of an op are T; statistics, losses, seeds f32. Parameters' gradients are G: f32 or
// bf16, whatever T is; summed in f32 with what is there, rounded once. Other mixes are refused with tensor and types.
//
// Rules every kernel keeps:
//  * bits do not depend on the number of threads: work is split over output elements, a split sum uses fixed-size
//    blocks combined in index order;
//  * `accumulate`: false writes, true adds; nothing is ever zero-filled first;
//  * no heap allocation once warm; scratch belongs to the stream's context;
//  * empty tensors (numel 0) are legal and do nothing.
#pragma once
#include <cstdint>

#include "kernels/core/dropout.h"
#include "kernels/core/segments.h"
#include "kernels/core/step_limits.h"
#include "kernels/core/tensor.h"

namespace gt {

enum class Epilogue : uint8_t {
  kNone,
  kGelu,      // aux = op(a) op(b) + bias, rounded to its type; out = gelu(aux), so that it can be made again from aux
  kGeluGrad,  // out = (op(a) op(b)) * gelu'(aux)
};

// out = epilogue(op(a) op(b) + bias) or out += op(a) op(b). a [m,k] or, trans_a, [k,m]; b [k,n] or, trans_b, [n,k];
// tensors of rank > 2 count as [rows, cols]. bias [n]. aux [m,n], for the GELU epilogues. Bias and epilogue exclude
// accumulate. a, b: T; bias, aux: T or f32; out: T or G.
// dbias: the gradient of a layer's bias on the way; empty: not wanted. With kGeluGrad [n] (+)= sums over rows of out as it
// is stored. With trans_a and no epilogue, where a is the gradient of the layer's output and out that of its weight, [m]
// (+)= sums over rows of a. G; beside an out of bf16 a library may round the sum of one call to bf16 before it is added.
struct Gemm {
  Tensor a, b, bias, aux, out;
  bool trans_a = false, trans_b = false, accumulate = false;
  Epilogue epilogue = Epilogue::kNone;
  // > 0: b is a weight whose bytes change only together with this number, so a backend may keep a packed copy of it.
  int64_t b_version = 0;
  Tensor dbias;
  bool accumulate_dbias = false;
  // Forward passes of generation: a row of out depends on that row of a alone, not on how many rows there are. Kept by
  // the CPU backend, for trans_b without accumulate, dbias and kGeluGrad; others may take no notice.
  bool by_rows = false;
};

struct Add { Tensor a, b, out; };                                  // out = a + b; out may alias a or b. f32 + H: f32
struct Axpy { Tensor x, y; float alpha = 1; };                     // y += alpha * x. x, y: any of T each
struct Copy { Tensor src, dst; };                                  // same dtype, same numel
struct AddBias { Tensor x, bias, out; };                           // out = x + bias[cols]; out may alias x. bias: any
struct SumRows { Tensor x, out; bool accumulate = false; };        // out[cols] G (+)= sum over rows: bias gradient
struct Cast { Tensor src, dst; };                                  // between any two of f32, bf16, f16

// GELU, tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). x: T or f32; dout and dx alike.
struct Gelu { Tensor x, out; };                                    // out: T or f32; may alias x
struct GeluGrad { Tensor x, dout, dx; bool accumulate = false; };  // dx (+)= dout * gelu'(x)

// Of feed-forward layers: GELU (tanh form), SiLU x sigmoid(x), squared ReLU max(x, 0)^2 (So et al. 2021).
enum class Activation : uint8_t { kGelu, kSilu, kRelu2, kNumActivations };
// out [n, F] = act(x), x [n, F]; or, gated (Shazeer 2020, arXiv 2002.05202), act(gate) * up, x [n, 2F]: a row is its F
// gates, then its F ups. A rank of a tensor-parallel layer has its slice of the gates, then its slice of the ups: the
// weight [2F, C] that makes x is cut as ShardSpec::split(0, 2). Arithmetic in f32, rounded once.
struct Activate {
  Tensor x, out;
  Activation kind = Activation::kSilu;
  bool gated = true;
};
// dx, laid out like x, is overwritten whole and may alias x. Gated: act'(gate) up dout, then act(gate) dout.
struct ActivateGrad {
  Tensor x, dout, dx;
  Activation kind = Activation::kSilu;
  bool gated = true;
};

// out = x * mask (kernels/core/dropout.h): the forward, and with the gradient as x the backward. x, out [n, C]; out may
// alias x.
struct Dropout { Tensor x, out; RowDrop drop; };

// FP8 copies of a tensor h that an op makes in the pass that makes h (or reads it). With scale = fp8_scale(amax[0])
// (kernels/core/fp8.h): rows [r, c] = h * scale in FP8, columns [c, r] the same transposed; both of one F8 type, either
// may be empty. inverse f32 [1] = 1 / scale. seen f32 [1] = max(seen, max |h|), with seen_anew max |h|; may be empty.
// Without rows and columns amax and inverse are empty too. h is rounded to its type first, stored or not.
struct Fp8Out {
  Tensor amax, rows, columns, inverse, seen;
  bool seen_anew = false;
  bool codes() const { return rows || columns; }
  explicit operator bool() const { return codes() || seen; }
};

// kLayer: (s - mean) * rstd * gamma + beta (Ba et al. 2016, arXiv 1607.06450).
// kRms: s * rstd * (gamma_offset + gamma), rstd = 1 / sqrt(mean of s^2 + eps) (Zhang & Sennrich 2019, 1910.07467).
// beta, dbeta and mean are empty. gamma_offset: 1 where a checkpoint holds weights less 1 (Gemma). Arithmetic is f32 and
// rounded once.
enum class NormKind : uint8_t { kLayer, kRms };

// sum = x + delta (delta may be empty: then sum is not written and the norm is of x); out = norm(sum).
// x, delta, sum, out [n, C]; gamma, beta [C]; mean, rstd [n] f32. out may not alias; sum may alias x or delta.
// drop: sum = x + delta * mask. gamma, beta: T or f32; delta: T, or H beside f32. What is normed is the sum as stored.
// fp8: of out, as f8e4m3; with rows or columns out may be empty.
struct LayerNorm {
  Tensor x, delta, gamma, beta, sum, out, mean, rstd;
  float eps = 1e-5f;
  RowDrop drop;
  Fp8Out fp8;
  NormKind kind = NormKind::kLayer;
  float gamma_offset = 0;
};

// dx = d(norm)/d(sum)^T dout + dsum. x is the normed input (the sum). dsum [n, C] may be empty: gradient that reaches
// the sum from elsewhere; dx may alias dsum. dgamma, dbeta [C] (+)= by accumulate_dw; empty: not wanted. dx empty: not
// wanted; then gamma only says how long a row is, its bytes need not be there.
// With drop: ddelta [n, C] = dx * mask, the gradient of delta; it may alias dout, and dx is written, not accumulated.
// dbias [C] (+)= sum over rows of delta's gradient as it is stored, of ddelta or else of dx: the gradient of the bias of
// the layer that made delta. Only with dx; empty: not wanted.
// fp8: of delta's gradient, as f8e5m2. Only with dx.
// gamma: T or f32; dgamma, dbeta, dbias: G; ddelta: T, or H beside f32.
struct LayerNormGrad {
  Tensor x, gamma, mean, rstd, dout, dsum, dx, dgamma, dbeta;
  bool accumulate_dx = false, accumulate_dw = false;
  Tensor ddelta;
  RowDrop drop;
  Tensor dbias;
  bool accumulate_dbias = false;
  Fp8Out fp8;
  NormKind kind = NormKind::kLayer;
  float gamma_offset = 0;
};

// RMSNorm of every query head and every key head of packed qkv [n, (heads + 2 kv_heads) * head_dim], laid out as for
// Attention: of each over its head_dim channels, with q_gamma, k_gamma [head_dim] (T or f32) and gamma_offset as in
// NormKind::kRms. v is copied. out has the shape of qkv and may alias it; rstd [n, heads + kv_heads] f32.
struct QkNorm {
  Tensor qkv, q_gamma, k_gamma, out, rstd;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  float eps = 1e-6f, gamma_offset = 0;
};
// qkv as it was before the norm. dqkv [n, ...] is overwritten whole; it may alias dout; empty: not wanted. dq_gamma,
// dk_gamma [head_dim] G (+)= by accumulate_dw; both empty: not wanted.
struct QkNormGrad {
  Tensor qkv, q_gamma, k_gamma, rstd, dout, dqkv, dq_gamma, dk_gamma;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  float gamma_offset = 0;
  bool accumulate_dw = false;
};

// Rotary position embedding (Su et al. 2021, arXiv 2104.09864), in place on the first `heads` heads of each row of
// x [n, C], C >= heads * head_dim: of packed qkv these are the query and the key heads. Pairs as in Hugging Face's
// rotate_half: channel i < d/2 of a head and channel d/2 + i, (a, b) = (a cos - b sin, b cos + a sin). Channels from d
// on stay (partial rotary). table [positions, d] f32 (kernels/core/rope.h): of a position cos of d/2 angles, then sin.
// Row r is at positions[r], i32 [n], or without those at first_position + (first_row + r) mod seq.
// backward: turns by minus the angle, which is the gradient.
struct Rope {
  Tensor x, table, positions;
  int64_t heads = 0, head_dim = 0, seq = 1, first_row = 0, first_position = 0;
  bool backward = false;
};

// Causal softmax(q k^T * scale) v by blocks. qkv [batch*seq, (heads + 2 kv_heads) * head_dim]: all q heads, then k,
// then v. out [batch*seq, heads*head_dim]; lse [batch, heads, seq] f32: log-sum-exp of the scaled scores, saved for the
// backward. Grouped queries: query head i reads kv head i / (heads / kv_heads). drop: the softmax's probabilities times
// a mask that is computed from counters, forward and backward; lse is not touched by it.
struct Attention {
  Tensor qkv, out, lse;
  int64_t batch = 0, seq = 0, heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1;
  HeadDrop drop;
};
// dqkv is overwritten whole, laid out like qkv.
struct AttentionGrad {
  Tensor qkv, out, lse, dout, dqkv;
  int64_t batch = 0, seq = 0, heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1;
  HeadDrop drop;
};

// Key-value cache of a layer: keys, values [sequences, kv_heads, capacity, head_dim] T. Row r of qkv [n, (heads + 2
// kv_heads) * head_dim], laid out as above, is the token at positions[r] < capacity of sequence sequences[r], i32 [n].
// No two rows are the same token.
struct StoreKv { Tensor qkv, sequences, positions, keys, values; int64_t heads = 0; };
// Causal softmax(q k^T * scale) v of each row over positions 0 .. positions[r] of its sequence, which the cache holds,
// this token among them. out [n, heads*head_dim]. CPU: the bits of Attention's row at that position.
struct CachedAttention {
  Tensor qkv, sequences, positions, keys, values, out;
  int64_t heads = 0;
  float scale = 1;
};

// out[i] = table[tokens[i] - first_row], or a zero row when that is outside [0, table rows). tokens i32 [n].
struct Embedding { Tensor tokens, table, out; int64_t first_row = 0; };
// dtable[row] G (+)= sum of dout[i] with tokens[i] == first_row + row, in ascending i. Not accumulating writes every
// row.
struct EmbeddingGrad { Tensor tokens, dout, dtable; int64_t first_row = 0; bool accumulate = false; };
// x[i] += pos[first_pos + i mod seq]; x [batch*seq, C], pos [max_seq, C], T or f32.
struct AddPosition { Tensor x, pos; int64_t seq = 0, first_pos = 0; };
// dpos[first_pos + p] G (+)= sum over sequences in order; rows outside are zeroed when not accumulating.
struct PositionGrad { Tensor dout, dpos; int64_t seq = 0, first_pos = 0; bool accumulate = false; };

// Cross-entropy where the whole vocabulary is here: what both halves below make of one part, in one pass over a row.
// logits [n, V], of which columns >= vocab are padding; targets, seed, loss, dlogits as there. Logits of rows without
// target are not read, nor is the seed without dlogits.
struct CrossEntropy {
  Tensor logits, targets, seed, loss, dlogits;
  int64_t vocab = 0;
};
// Vocabulary-parallel cross-entropy, first half. logits [n, V] are columns first_col .. first_col+V-1 of the
// vocabulary, of which those >= vocab are padding and count as -inf. stats [n, 3] f32 = (max, sum of exp(z - max), z of
// the target or 0). A rank whose columns are all padding writes (-inf, 0, 0). targets i32 [n], -1: no loss here.
struct CrossEntropyStats { Tensor logits, targets, stats; int64_t first_col = 0, vocab = 0; };
// Second half: stats [parts, n, 3] of all ranks, combined in rank order. loss [n] f32 = log sum + max - z_target, 0
// without target. If dlogits is given (it may alias logits): dlogits = (softmax - onehot) * seed[0], 0 in rows without
// target and in padded columns. seed [1] f32 on the device.
struct CrossEntropyGrad {
  Tensor logits, targets, stats, seed, loss, dlogits;
  int64_t parts = 1, first_col = 0, vocab = 0;
};

// out[0] f64 (+)= sum of x, each element as f64, fixed blocks in order. inf and nan come through.
struct Sum { Tensor x, out; bool accumulate = false; };
// out[group] f64 = sum of squares of the gradients of a group's counted segments, each by fixed blocks, in their order.
// Entries of groups that the table has nothing of are left alone. Gradients: G.
struct SumSquares { SegmentTable table; Tensor out; };

// Device-resident scalars of one optimizer step, f32 [kNumScalars]: a captured step replays with new values.
enum StepScalar : int {
  kLr,
  kBeta1,
  kBiasCorrection1,
  kBiasCorrection2,
  kGradMultiplier,
  kSkip,
  kLossSeed,
  kBeta2,
  kGradShare,  // weight of the gradient in a first moment that is no average: SGD's 1 - dampening
  kStepLow,    // number of the applied step, from 1, modulo 2^16, and
  kStepHigh,   // what is above: both are whole numbers that f32 holds exactly
  kLeftOut,    // not 0: gradients are finite, and the step was judged bad
  kNumScalars = 16
};
// From norm_squares f64 [scopes] (summed over all ranks): total = sqrt(sum in order) / denominator;
// scalars[kGradMultiplier] = min(1, clip / (total + slack)) / denominator (clip 0: no clipping);
// scalars[kSkip] = 1 if the total or an entry of `guard` is not finite, else 0; norm f32 [1] = total. guard f64, may be
// empty: sums over what the norm does not count and that must be finite as well.
struct ClipFactor {
  Tensor norm_squares, scalars, norm;
  float clip = 1, denominator = 1;
  double slack = 1e-6;
  Tensor guard;
};
// Before the update: a bad step (step_limits.h; limits f64 [kNumLimits]) by losses f64 [n], sums over microbatches, and
// norm f32 [1] sets scalars[kSkip] and scalars[kLeftOut] to 1; both stay as they are where it is skipped already. counts
// f64 [n], targets of each microbatch: the loss is the mean of their means; empty: the mean over limits[kTargets].
struct JudgeStep { Tensor losses, counts, norm, limits, scalars; };

// Optimizer steps over the segments of a table (kernels/core/segments.h), all that a rank trains in one call. Masters
// f32, moments f32, grad G; value of the compute dtype, or nullptr when the master is the value; value = round(master).
// A master of a half type (AMP O3: there are no masters) is the value: widened, stepped in f32 and rounded back. All
// read scalars, g = grad * scalars[kGradMultiplier], lr, beta1 (b1) and beta2 (b2) there and the segment's weight_decay,
// and write nothing when scalars[kSkip] != 0.

// AdamW (Loshchilov & Hutter 2019), decoupled decay:
//   m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2
//   master -= lr * ((m / bc1) / (sqrt(v / bc2) + eps) + weight_decay * master)
// adam_l2: g += weight_decay * master before the moments, no decoupled decay (Adam, Kingma & Ba 2015).
struct AdamW {
  SegmentTable table;
  Tensor scalars;
  float eps = 1e-8f;
  bool adam_l2 = false;
};

// Momentum as PyTorch has it: g += weight_decay * master; m = b1 m + scalars[kGradShare] g;
// master -= lr * (nesterov ? g + b1 m : m). Segments without m: master -= lr * g.
struct Sgd {
  SegmentTable table;
  Tensor scalars;
  bool nesterov = false;
};

// Lion (Chen et al. 2023): u = sign(b1 m + (1-b1) g), sign(0) = 0; master -= lr * (u + weight_decay * master);
// m = b2 m + (1-b2) g.
struct Lion {
  SegmentTable table;
  Tensor scalars;
};

// LAMB (You et al. 2020) and the forms that apex and DeepSpeed gave it, in two passes, for the step of a tensor needs
// the norms of all of it. With corrections c = 1 / bc, or 1 when not `corrected`:
//   u = m c1 / (sqrt(v c2) + eps) + weight_decay * master    (eps_inside_sqrt: sqrt(v c2 + eps))
//   ratio = both norms nonzero ? clamp(clamp(|master|, min_norm, max_norm) / |u|, min_ratio, max_ratio) : 1
struct LambRule {
  float eps = 1e-6f;
  bool l2 = false;              // g += weight_decay * master before the moments, u without decay (apex's L2 mode)
  bool grad_averaging = true;   // m = b1 m + (1-b1) g; else m = b1 m + g (apex)
  bool corrected = true;        // bias corrections inside u; else the step is scaled by sqrt(bc2) / bc1 (DeepSpeed)
  bool eps_inside_sqrt = false;
  bool adapt_undecayed = true;  // false: the ratio is 1 where weight_decay is 0 (apex)
  float min_norm = 0, max_norm = __builtin_inff(), min_ratio = 0, max_ratio = __builtin_inff();
};
// First pass: m, v as AdamW. norms f64 [groups, 2] = the sums of squares of master (before the step) and of u over a
// group's counted segments, by fixed blocks in order; 0 in a skipped step. Groups that the table has nothing of are left
// alone.
struct LambMoments {
  SegmentTable table;
  Tensor scalars, norms;
  LambRule rule;
};
// Second pass: master -= lr * ratio * u, the ratio from norms [groups, 2], in which a group is a whole tensor, whatever
// of it the table has. ratio f32 [groups], may be empty: it is written there for the groups of the table.
struct LambApply {
  SegmentTable table;
  Tensor scalars, norms, ratio;
  LambRule rule;
};

// dst bf16 = src f32 rounded to a neighbour at random, upwards with the probability of what is cut off: 16 random bits
// are added to the bits of src and its lower half dropped. Numbers of bf16, infinities and NaN stay what they are.
// Element i of src is element e = base + (first + i) / cols * stride + (first + i) % cols of a stream; its random bits
// are the upper half of word e mod 4 of philox(key, e / 4, n) (kernels/core/rng.h), n the step's number in `scalars`.
// Writes nothing when scalars[kSkip] != 0.
struct StochasticRound {
  Tensor src, dst, scalars;
  uint64_t key = 0;
  int64_t base = 0, first = 0, cols = 1, stride = 1;
};

// Fake quantization to int8, symmetric, by rows: x, out [rows, cols] T, limits [rows] f32 >= 0. With scale = max(limit
// / 127, smallest normal f32): out = clamp(nearest-even(x / scale), -127, 127) * scale; rows of limit 0: out = x. A
// tensor with one limit is one row. out may alias x.
struct FakeQuant { Tensor x, limits, out; };
// The straight-through gradient (Bengio et al. 2013): dx (+)= dout where |x| <= limit or the limit is 0, else 0.
struct FakeQuantGrad { Tensor x, limits, dout, dx; bool accumulate = false; };
// out [rows] f32 = largest |x| of a row of x [rows, cols] T, 0 of none; accumulate: or what is there, if that is larger.
struct MaxAbs { Tensor x, out; bool accumulate = false; };

// What codes are made of: x itself, gelu(x), or x * gelu'(pre), the gradient that comes back through a GELU. Rounded to
// T first, so that codes are those of the tensor that is not stored.
enum class CodesOf : uint8_t { kPlain, kGelu, kGeluGrad };
// FP8 data (Fp8Out) of h = x, or what `of` makes of it, as f8e4m3 or f8e5m2. x, pre [r, c] T. sums [c] G, may be empty:
// (+)= column sums of h, which is a bias' gradient. At least one of fp8 and sums is wanted.
struct QuantizeFp8 {
  Tensor x;
  Fp8Out fp8;
  CodesOf of = CodesOf::kPlain;
  Tensor pre, sums;
  bool accumulate = false;
};
// out (+)= (a b^T) a_scale[0] b_scale[0] + bias, summed in f32, rounded once. a [m, k], b [n, k] F8, at most one of them
// f8e5m2; m, n and k multiples of 16 and scales f32 [1] at multiples of 16 bytes, as tensor cores ask for. out [m, n]: f32
// or half; bias [n] of out's type, not with accumulate. Sums may keep fewer bits: GemmTuning::fp8_fast_accum.
struct GemmFp8 { Tensor a, b, a_scale, b_scale, bias, out; bool accumulate = false; };
// Delayed scaling: column `at` of history [n, steps] = seen [n], or 0 where that is not finite; amax [n] = the largest
// of each row. All f32.
struct AmaxHistory { Tensor seen, history, amax; int64_t at = 0; };

// The list. Columns: entry, arguments, AMP class (O1 casts: kLow = tensor-core op, kHigh = keep f32, kKeep = as given).
// The table, the null backend, the completeness check, decorators and the parity test are all generated from it.
#define GT_OPS(X)                                     \
  X(gemm, Gemm, kLow)                                 \
  X(add, Add, kKeep)                                  \
  X(axpy, Axpy, kKeep)                                \
  X(copy, Copy, kKeep)                                \
  X(add_bias, AddBias, kKeep)                         \
  X(sum_rows, SumRows, kHigh)                         \
  X(cast, Cast, kKeep)                                \
  X(gelu, Gelu, kHigh)                                \
  X(gelu_grad, GeluGrad, kHigh)                       \
  X(activate, Activate, kHigh)                        \
  X(activate_grad, ActivateGrad, kHigh)               \
  X(dropout, Dropout, kKeep)                          \
  X(layer_norm, LayerNorm, kHigh)                     \
  X(layer_norm_grad, LayerNormGrad, kHigh)            \
  X(qk_norm, QkNorm, kHigh)                           \
  X(qk_norm_grad, QkNormGrad, kHigh)                  \
  X(rope, Rope, kHigh)                                \
  X(attention, Attention, kLow)                       \
  X(attention_grad, AttentionGrad, kLow)              \
  X(store_kv, StoreKv, kKeep)                         \
  X(cached_attention, CachedAttention, kLow)          \
  X(embedding, Embedding, kKeep)                      \
  X(embedding_grad, EmbeddingGrad, kKeep)             \
  X(add_position, AddPosition, kKeep)                 \
  X(position_grad, PositionGrad, kKeep)               \
  X(cross_entropy, CrossEntropy, kHigh)               \
  X(cross_entropy_stats, CrossEntropyStats, kHigh)    \
  X(cross_entropy_grad, CrossEntropyGrad, kHigh)      \
  X(sum, Sum, kHigh)                                  \
  X(sum_squares, SumSquares, kHigh)                   \
  X(clip_factor, ClipFactor, kHigh)                   \
  X(judge_step, JudgeStep, kHigh)                     \
  X(adamw, AdamW, kHigh)                              \
  X(sgd, Sgd, kHigh)                                  \
  X(lion, Lion, kHigh)                                \
  X(lamb_moments, LambMoments, kHigh)                 \
  X(lamb_apply, LambApply, kHigh)                     \
  X(stochastic_round, StochasticRound, kHigh)         \
  X(fake_quant, FakeQuant, kKeep)                     \
  X(fake_quant_grad, FakeQuantGrad, kKeep)            \
  X(max_abs, MaxAbs, kHigh)                           \
  X(quantize_fp8, QuantizeFp8, kKeep)                 \
  X(gemm_fp8, GemmFp8, kLow)                          \
  X(amax_history, AmaxHistory, kKeep)

template <class Args>
using Kernel = void (*)(const Args&, Stream);

struct OpTable {
  const char* name = "";
#define X(entry, Args, amp) Kernel<Args> entry = nullptr;
  GT_OPS(X)
#undef X
};

constexpr const char* first_missing(const OpTable& t) {  // nullptr: complete
#define X(entry, Args, amp) if (t.entry == nullptr) return #entry;
  GT_OPS(X)
#undef X
  return nullptr;
}

// Proves at compile time that a table is complete. Under UBSan the address of a function is no constant expression for
// GCC: there the tests of the backends say it at run time.
#ifdef GPT_SANITIZED
#define GT_COMPLETE_TABLE(table) static_assert(true)
#else
#define GT_COMPLETE_TABLE(table) static_assert(first_missing(table) == nullptr)
#endif

// A table that runs `Hook::before("entry", args)` and then `inner`: ranges, shape logs, FLOP counts, NaN checks.
// One decorated table per Hook type: decorating again replaces the inner table.
template <class Hook>
const OpTable& decorate(const OpTable& inner) {
  static const OpTable* to = nullptr;
  to = &inner;
  static constexpr OpTable table{
      .name = "decorated",
#define X(entry, Args, amp) .entry = [](const Args& a, Stream s) { Hook::before(#entry, a); to->entry(a, s); },
      GT_OPS(X)
#undef X
  };
  return table;
}

}  // namespace gt
