// The op table: every primitive the trainer can run, on every device. Each op is an argument struct and a function
// pointer; a backend is a constexpr OpTable. Shapes: n tokens, C hidden, V local vocabulary.
//
// Dtypes. T is one of f32, bf16, f16: the storage type of an op's main tensors. Arithmetic is f32; results are rounded
// once, to nearest even (f16: overflow gives inf). "T or f32" is decided per tensor; H is a 16-bit type beside f32.
// Unless stated otherwise all tensors of an op are T; statistics, losses and upstream gradients are f32. Parameter
// gradients are G: f32 or bf16, independent of T; they accumulate in f32 and are rounded once. Kernels reject any other
// mix, naming tensor and dtypes.
//
// Invariants of every kernel:
//  * results do not depend on the thread count: work is split over output elements; a split sum uses fixed-size blocks
//    combined in index order;
//  * `accumulate`: false overwrites, true adds; no op requires a zero-filled output;
//  * no heap allocation once warm; scratch belongs to the stream's context;
//  * empty tensors (numel 0) are legal no-ops.
#pragma once
#include <cstdint>

#include "kernels/core/dropout.h"
#include "kernels/core/tensor.h"
#include "kernels/expert_ops.h"
#include "kernels/fp8_ops.h"
#include "kernels/operands.h"
#include "kernels/optimizer_ops.h"

namespace gt {

enum class Epilogue : uint8_t {
  kNone,
  kGelu,      // aux = op(a) op(b) + bias, rounded to its dtype; out = gelu(aux), recomputable from the stored aux
  kGeluGrad,  // out = (op(a) op(b)) * gelu'(aux)
};

// GEMM: out = epilogue(op(a) op(b) + bias) or out += op(a) op(b). a [m,k], or [k,m] with trans_a; b [k,n], or [n,k]
// with trans_b. Tensors of rank > 2 are flattened to [rows, cols]. bias [n]. aux [m,n], for the GELU epilogues. Bias
// and epilogue exclude accumulate. a, b: T; bias, aux: T or f32; out: T or G. dbias: fused bias gradient, dtype G;
// empty: not computed. With kGeluGrad: [n] (+)= column sums of out as stored. With trans_a and no epilogue (a = output
// gradient, out = weight gradient): [m] (+)= column sums of a as stored. With a bf16 out, a library may round the sum
// of one call to bf16 before adding it. squares: of a weight gradient on a CPU, f64 [1]: sum of squares of out, or -1
// where it takes a further pass over out. Empty: not computed.
struct Gemm {
  Tensor a, b, bias, aux, out;
  bool trans_a = false, trans_b = false, accumulate = false;
  Epilogue epilogue = Epilogue::kNone;
  // > 0: b is a weight that changes only together with this number, so a backend may cache a packed copy.
  int64_t b_version = 0;
  Tensor dbias;
  bool accumulate_dbias = false;
  Tensor squares;
  // Generation: each row of out depends only on that row of a, not on the number of rows. Honored by the CPU backend
  // for trans_b without accumulate, dbias and kGeluGrad; other backends may ignore it.
  bool row_independent = false;
  // Forward GEMMs use the transposed weight.
  Direction direction() const { return trans_b ? Direction::kForward : Direction::kBackward; }
  GT_OPERANDS(.in("a", o.a)
                  .in("b", o.b)
                  .in("bias", o.bias)
                  .out("out", o.out, o.accumulate)
                  .operand("aux", o.aux, o.epilogue == Epilogue::kGeluGrad ? OperandRole::kIn : OperandRole::kOut)
                  .out("dbias", o.dbias, o.accumulate_dbias)
                  .control("squares", o.squares))
};

// out = a + b; out may alias a or b. f32 + H gives f32.
struct Add {
  Tensor a, b, out;
  GT_OPERANDS(.in("a", o.a).in("b", o.b).out("out", o.out))
};
// y += alpha * x. x, y: each any of T.
struct Axpy {
  Tensor x, y;
  float alpha = 1;
  GT_OPERANDS(.in("x", o.x).out("y", o.y, true))
};
// out = factor * x, both T; out may alias x.
struct Scale {
  Tensor x, out;
  float factor = 1;
  GT_OPERANDS(.in("x", o.x).out("out", o.out))
};
// out = cap tanh(x / cap), cap > 0; both T; out may alias x. For logits at inference; the loss ops apply their own cap.
struct SoftCap {
  Tensor x, out;
  float cap = 1;
  GT_OPERANDS(.in("x", o.x).out("out", o.out))
};
// same dtype, same numel
struct Copy {
  Tensor src, dst;
  GT_OPERANDS(.in("src", o.src).out("dst", o.dst))
};
// out = x + bias[cols]; out may alias x. bias: any dtype of T.
struct AddBias {
  Tensor x, bias, out;
  GT_OPERANDS(.in("x", o.x).in("bias", o.bias).out("out", o.out))
};
// Bias gradient: out[cols] G (+)= column sums of x.
struct ColumnSums {
  Tensor x, out;
  bool accumulate = false;
  GT_OPERANDS(.in("x", o.x).out("out", o.out, o.accumulate))
};
// Converts between any two of f32, bf16, f16.
struct Cast {
  Tensor src, dst;
  GT_OPERANDS(.in("src", o.src).out("dst", o.dst))
};

// GELU, tanh approximation: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). x, out, dout, dx: T or f32 each. out may
// alias x.
struct Gelu {
  Tensor x, out;
  GT_OPERANDS(.in("x", o.x).out("out", o.out))
};
// dx (+)= dout * gelu'(x)
struct GeluGrad {
  Tensor x, dout, dx;
  bool accumulate = false;
  GT_OPERANDS(.in("x", o.x).in("dout", o.dout).out("dx", o.dx, o.accumulate))
};

// Activations: GELU (tanh form), SiLU x sigmoid(x), squared ReLU max(x, 0)^2 (So et al. 2021), GELU x Phi(x) (erf
// form), tanh.
enum class Activation : uint8_t { kGelu, kSilu, kRelu2, kGeluErf, kTanh, kNumActivations };
// out [n, F] = act(x), x [n, F]; gated (Shazeer 2020, arXiv 2002.05202): out = act(gate) * up, x [n, 2F] = [gate, up]
// per row. Under tensor parallelism a rank holds its slice of the gates, then its slice of the ups: the weight [2F, C]
// that produces x is sharded as ShardSpec::split(0, 2). f32 arithmetic, rounded once.
struct Activate {
  Tensor x, out;
  Activation kind = Activation::kSilu;
  bool gated = true;
  GT_OPERANDS(.in("x", o.x).out("out", o.out))
};
// Writes all of dx, laid out like x; dx may alias x or, not gated, dout. Gated: act'(gate) up dout, act(gate) dout.
struct ActivateGrad {
  Tensor x, dout, dx;
  Activation kind = Activation::kSilu;
  bool gated = true;
  GT_OPERANDS(.in("x", o.x).in("dout", o.dout).out("dx", o.dx))
};

// out = x * mask (kernels/core/dropout.h). Also its own backward, with the gradient as x. x, out [n, C]; out may alias
// x.
struct Dropout {
  Tensor x, out;
  RowDrop drop;
  GT_OPERANDS(.in("x", o.x).out("out", o.out))
};

// kLayer: (s - mean) * rstd * gamma + beta (Ba et al. 2016, arXiv 1607.06450).
// kRms: s * rstd * (gamma_offset + gamma), rstd = 1 / sqrt(mean of s^2 + eps) (Zhang & Sennrich 2019, 1910.07467);
// beta, dbeta and mean are empty. gamma_offset: 1 for checkpoints that store weights minus 1 (Gemma). f32 arithmetic,
// rounded once.
enum class NormKind : uint8_t { kLayer, kRms };

// Residual add and norm: sum = x + delta, out = norm(sum). With an empty delta, sum is not written and x is normalized.
// x, delta, sum, out [n, C]; gamma, beta [C]; mean, rstd [n] f32. out must not alias; sum may alias x or delta.
// drop: sum = x + delta * mask. gamma, beta: T or f32; delta: T, or H beside f32. The norm reads the sum as stored.
// fp8: f8e4m3 data of out; with rowwise or columnwise data, out may be empty.
struct LayerNorm {
  Tensor x, delta, gamma, beta, sum, out, mean, rstd;
  float eps = 1e-5f;
  RowDrop drop;
  Fp8Out fp8;
  NormKind kind = NormKind::kLayer;
  float gamma_offset = 0;
  GT_OPERANDS(.in("x", o.x)
                  .in("delta", o.delta)
                  .in("gamma", o.gamma)
                  .in("beta", o.beta)
                  .out("sum", o.sum)
                  .out("out", o.out)
                  .out("mean", o.mean)
                  .out("rstd", o.rstd)
                  .all(o.fp8))
};

// dx = d(norm)/d(sum)^T dout + dsum. x is the normalized input (the sum). dsum [n, C], may be empty: further gradient
// of the sum; dx may alias dsum. dgamma, dbeta [C] (+)= by accumulate_dw; empty: not computed. dx empty: not computed;
// gamma then only provides the row length and its data may be absent. drop: ddelta [n, C] = dx * mask, the gradient of
// delta; may alias dout. dx is then written, not accumulated. dbias [C] (+)= column sums of delta's gradient as stored
// (ddelta if present, else dx): bias gradient of the layer that produced delta. Requires dx; empty: not computed. fp8:
// f8e5m2 data of delta's gradient. Requires dx. gamma: T or f32; dgamma, dbeta, dbias: G; ddelta: T, or H beside f32.
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
  GT_OPERANDS(.in("x", o.x)
                  .in("mean", o.mean)
                  .in("rstd", o.rstd)
                  .in("dout", o.dout)
                  .in("dsum", o.dsum)
                  .out("dx", o.dx, o.accumulate_dx)
                  .out("dgamma", o.dgamma, o.accumulate_dw)
                  .out("dbeta", o.dbeta, o.accumulate_dw)
                  .out("ddelta", o.ddelta)
                  .out("dbias", o.dbias, o.accumulate_dbias)
                  .in("gamma", o.gamma)
                  .all(o.fp8))
};

// RMSNorm of the queries and keys of every head of packed qkv [n, (heads + 2 kv_heads) * head_dim] (PackedQkv),
// each over its head_dim channels. q_gamma, k_gamma [head_dim] (T or f32); gamma_offset as in
// NormKind::kRms. v is copied.
// out has the shape of qkv and may alias it; rstd [n, heads + kv_heads] f32.
struct QkNorm {
  Tensor qkv, q_gamma, k_gamma, out, rstd;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  float eps = 1e-6f, gamma_offset = 0;
  GT_OPERANDS(.in("qkv", o.qkv).in("q_gamma", o.q_gamma).in("k_gamma", o.k_gamma).out("out", o.out).out("rstd", o.rstd))
};
// qkv: the input of the norm. dqkv [n, ...] is overwritten whole; may alias dout; empty: not computed. dq_gamma,
// dk_gamma [head_dim] G (+)= by accumulate_dw; both empty: not computed.
struct QkNormGrad {
  Tensor qkv, q_gamma, k_gamma, rstd, dout, dqkv, dq_gamma, dk_gamma;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  float gamma_offset = 0;
  bool accumulate_dw = false;
  GT_OPERANDS(.in("qkv", o.qkv)
                  .in("rstd", o.rstd)
                  .in("dout", o.dout)
                  .out("dqkv", o.dqkv)
                  .out("dq_gamma", o.dq_gamma, o.accumulate_dw)
                  .out("dk_gamma", o.dk_gamma, o.accumulate_dw)
                  .in("q_gamma", o.q_gamma)
                  .in("k_gamma", o.k_gamma))
};

// RMSNorm over all queries of a row together, and over all its keys (OLMo 2, arXiv 2501.00656). Two ops, between which
// the `ranks` TP ranks all-reduce `sums`. Each rank has `heads` and `kv_heads` heads of packed qkv (PackedQkv),
// and gamma [(heads + kv_heads) * head_dim] (T or f32) of the same channels. KV heads replicated on several
// ranks count that often in the sum and in its mean.
//
// First op: sums [n, 2] f32, over the query channels of each row and over its key channels: the sum of x^2 or, with
// dout, of dout * gamma * x. gamma is read only with dout.
struct QkRowSums {
  Tensor qkv, gamma, dout, sums;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  Direction direction() const { return dout ? Direction::kBackward : Direction::kForward; }
  GT_OPERANDS(.in("qkv", o.qkv).in("gamma", o.gamma).in("dout", o.dout).out("sums", o.sums))
};
// Second op: out = x * rstd * gamma, rstd = 1 / sqrt(sums / (ranks * channels) + eps). v is copied; out may alias qkv.
struct QkRowNorm {
  Tensor qkv, gamma, sums, out;
  int64_t heads = 0, kv_heads = 0, head_dim = 0, ranks = 1;
  float eps = 1e-6f;
  GT_OPERANDS(.in("qkv", o.qkv).in("gamma", o.gamma).in("sums", o.sums).out("out", o.out))
};
// qkv: the input of the norm; dsums: the first op's result with dout. dqkv = rstd * (dout * gamma - x * rstd^2 * dsums
// / (ranks * channels)), overwritten whole, v copied; may alias dout. Empty: not computed, and dsums is not read.
// dgamma G (+)= by accumulate_dw; empty: not computed.
struct QkRowNormGrad {
  Tensor qkv, gamma, sums, dsums, dout, dqkv, dgamma;
  int64_t heads = 0, kv_heads = 0, head_dim = 0, ranks = 1;
  float eps = 1e-6f;
  bool accumulate_dw = false;
  GT_OPERANDS(.in("qkv", o.qkv)
                  .in("sums", o.sums)
                  .in("dsums", o.dsums)
                  .in("dout", o.dout)
                  .out("dqkv", o.dqkv)
                  .out("dgamma", o.dgamma, o.accumulate_dw)
                  .in("gamma", o.gamma))
};

// Rotary position embedding (Su et al. 2021, arXiv 2104.09864), in place on the first `heads` heads of each row of x
// [n, C], C >= heads * head_dim: in packed qkv, the query and key heads. Pairs as in Hugging Face's rotate_half:
// channel i < d/2 of a head and channel d/2 + i, (a, b) = (a cos - b sin, b cos + a sin). Channels from d on are
// unchanged (partial rotary). table [positions, d] f32 (kernels/core/rope.h): per position cos of d/2 angles, then sin.
// positions: i32 [n], of each row; empty: those of `rows`. backward: rotates by minus the angle, which is the gradient.
struct Rope {
  Tensor x, table, positions;
  int64_t heads = 0, head_dim = 0;
  Positions rows;
  bool backward = false;
  Direction direction() const { return backward ? Direction::kBackward : Direction::kForward; }
  GT_OPERANDS(.out("x", o.x, true).control("table", o.table).control("positions", o.positions))
};

// Which scores attention computes: of `queries` queries and `keys` keys of `batch` sequences. Query i has position
// first_query + i in its sequence, key j position first_key + j. Grouped queries: query head i reads kv head
// i / (heads / kv_heads). Causal unless `full`: a query sees keys up to its own position.
// drop: the softmax's probabilities times a mask that is computed from counters, forward and backward.
// window w > 0: a query at i sees keys at j with 0 <= i - j < w (Beltagy et al. 2020, arXiv 2004.05150); 0: all that
// precede it. softcap c > 0: a scaled score x is replaced by c tanh(x / c) (Gemma 2, arXiv 2408.00118).
// documents i32 [batch, queries], causal: position of each query in its document, of which alone it sees keys; empty:
// a sequence is one document. full: bidirectional (Devlin et al. 2018, arXiv 1810.04805): every query sees the keys of
// its sequence b at positions below lengths[b], and no others. lengths i32 [batch], >= 1; empty: all keys. Requires for
// full: no window, no documents; else: no lengths.
struct AttentionSpec {
  int64_t batch = 0, queries = 0, keys = 0, heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1;
  HeadDrop drop;
  int64_t window = 0;
  float softcap = 0;
  bool full = false;
  Tensor lengths, documents;
  int64_t first_query = 0, first_key = 0;
  GT_OPERANDS(.control("lengths", o.lengths).control("documents", o.documents))
};

// Softmax(q k^T * scale) v by blocks. q [batch*queries, heads], k, v [batch*keys, kv_heads]. out [batch*queries,
// heads*head_dim]; lse [batch, heads, queries] f32: log-sum-exp of the scaled scores, saved for the backward; dropout
// does not touch it. A query that sees no key has out 0 and lse -inf.
struct Attention {
  HeadView q, k, v;
  Tensor out, lse;
  AttentionSpec spec;
  GT_OPERANDS(.in("q", o.q.rows).in("k", o.k.rows).in("v", o.v.rows).out("out", o.out).out("lse", o.lse).all(o.spec))
};
// out, lse: of all keys that a query sees, if `keys` are a part of them. dq, dk, dv are overwritten whole: 0 for keys
// that no query sees.
struct AttentionGrad {
  HeadView q, k, v;
  Tensor out, lse, dout;
  HeadView dq, dk, dv;
  AttentionSpec spec;
  GT_OPERANDS(.in("q", o.q.rows)
                  .in("k", o.k.rows)
                  .in("v", o.v.rows)
                  .in("out", o.out)
                  .in("lse", o.lse)
                  .in("dout", o.dout)
                  .out("dq", o.dq.rows)
                  .out("dk", o.dk.rows)
                  .out("dv", o.dv.rows)
                  .all(o.spec))
};

// Views of packed qkv [n, (heads + 2 kv_heads) * head_dim]: all query heads, then those of keys, then of values.
struct PackedQkv {
  HeadView q, k, v;
  PackedQkv(const Tensor& qkv, int64_t heads, int64_t kv_heads, int64_t head_dim)
      : q{qkv, 0}, k{qkv, heads * head_dim}, v{qkv, (heads + kv_heads) * head_dim} {}
};

// Appends to the KV cache of a layer: keys, values [sequences, kv_heads, capacity, head_dim] T. Row r of k and v
// [n, kv_heads] is the token at positions[r] < capacity of sequence sequences[r], both i32 [n]. Requires: (sequence,
// position) pairs are distinct.
struct StoreKv {
  HeadView k, v;
  Tensor sequences, positions, keys, values;
  GT_OPERANDS(.in("k", o.k.rows)
                  .in("v", o.v.rows)
                  .control("sequences", o.sequences)
                  .control("positions", o.positions)
                  .out("keys", o.keys, true)
                  .out("values", o.values, true))
};
// Causal softmax(q k^T * scale) v of each row of q [n, heads] over cached positions 0 .. positions[r] of its sequence,
// its own token included. out [n, heads*head_dim]. CPU: bitwise identical to Attention's row at that position.
struct CachedAttention {
  HeadView q;
  Tensor sequences, positions, keys, values, out;
  int64_t heads = 0;
  float scale = 1;
  int64_t window = 0;
  float softcap = 0;
  GT_OPERANDS(.in("q", o.q.rows)
                  .control("sequences", o.sequences)
                  .control("positions", o.positions)
                  .in("keys", o.keys)
                  .in("values", o.values)
                  .out("out", o.out))
};

// out[i] = table[tokens[i] - first_row], or zeros where that index is outside [0, table rows). tokens i32 [n].
struct Embedding {
  Tensor tokens, table, out;
  int64_t first_row = 0;
  GT_OPERANDS(.control("tokens", o.tokens).in("table", o.table).out("out", o.out))
};
// dtable[row] G (+)= sum of dout[i] with tokens[i] == first_row + row, in ascending i, complete before it is added.
// Without accumulate, writes every row. squares, f64 [1]: sum of squares of dtable, kept up to date: with accumulate it
// is read first, and -1 stays -1. Empty: not computed. Requires for squares: a CPU and dtable f32.
struct EmbeddingGrad {
  Tensor tokens, dout, dtable;
  int64_t first_row = 0;
  bool accumulate = false;
  Tensor squares;
  GT_OPERANDS(.control("tokens", o.tokens)
                  .in("dout", o.dout)
                  .out("dtable", o.dtable, o.accumulate)
                  .control("squares", o.squares))
};
// x[i] += pos[rows.position(i)]. x [n, C]; pos [max_seq, C], T or f32.
struct AddPosition {
  Tensor x, pos;
  Positions rows;
  GT_OPERANDS(.out("x", o.x, true).in("pos", o.pos))
};
// dpos[rows.position(i)] G (+)= sum of dout[i], in order. Without accumulate, all other rows are zeroed. Requires:
// whole sequences, from row 0 on.
struct PositionGrad {
  Tensor dout, dpos;
  Positions rows;
  bool accumulate = false;
  GT_OPERANDS(.in("dout", o.dout).out("dpos", o.dpos, o.accumulate))
};

// Cross-entropy over the whole vocabulary: fuses CrossEntropyStats and CrossEntropyGrad with one part into one pass per
// row. logits [n, V], columns >= vocab are padding; targets, seed (dloss), loss, dlogits, z_loss, hits as there. Logits
// of rows without a target are not read, nor is the seed without dlogits.
struct CrossEntropy {
  Tensor logits, targets, seed, loss, dlogits;
  int64_t vocab = 0;
  float softcap = 0, z_loss = 0;
  Tensor hits;
  GT_OPERANDS(.in("logits", o.logits)
                  .control("targets", o.targets)
                  .in("seed", o.seed)
                  .out("loss", o.loss)
                  .out("dlogits", o.dlogits)
                  .out("hits", o.hits))
};
// Vocabulary-parallel cross-entropy, step 1: local statistics. logits [n, V] are vocabulary columns first_col ..
// first_col+V-1; those >= vocab are padding and count as -inf. stats [n, 3] f32 = (max, sum of exp(z - max), z of the
// target or 0). A rank with padding columns only writes (-inf, 0, 0). targets i32 [n], -1: no loss.
struct CrossEntropyStats {
  Tensor logits, targets, stats;
  int64_t first_col = 0, vocab = 0;
  float softcap = 0;
  GT_OPERANDS(.in("logits", o.logits).control("targets", o.targets).control("stats", o.stats))
};
// Vocabulary-parallel cross-entropy, step 2. stats [parts, n, 3] of all ranks are combined in rank order. loss [n] f32
// = log sum + max - z_target, 0 without a target. dlogits, if given (may alias logits), = (softmax - onehot) * seed[0],
// 0 in rows without a target and in padded columns. seed [1] f32 on the device: upstream gradient. z_loss c > 0: the
// loss of a row with a target has c lse^2 more, lse = log sum + max (Chowdhery et al. 2022, arXiv 2204.02311), its
// gradient 2 c lse softmax seed. hits [n] f32, if given: 1 in rows whose target has the largest logit, or one of those,
// else 0.
struct CrossEntropyGrad {
  Tensor logits, targets, stats, seed, loss, dlogits;
  int64_t parts = 1, first_col = 0, vocab = 0;
  float softcap = 0, z_loss = 0;
  Tensor hits;
  GT_OPERANDS(.in("logits", o.logits)
                  .control("targets", o.targets)
                  .control("stats", o.stats)
                  .in("seed", o.seed)
                  .out("loss", o.loss)
                  .out("dlogits", o.dlogits)
                  .out("hits", o.hits))
};

// Symmetric int8 fake quantization per row. x, out [rows, cols] T; limits [rows] f32 >= 0. With scale = max(limit /
// 127, smallest normal f32): out = clamp(nearest-even(x / scale), -127, 127) * scale; rows with limit 0: out = x.
// Per-tensor quantization is a single row. out may alias x.
struct FakeQuant {
  Tensor x, limits, out;
  GT_OPERANDS(.in("x", o.x).in("limits", o.limits).out("out", o.out))
};
// Straight-through estimator (Bengio et al. 2013): dx (+)= dout where |x| <= limit or the limit is 0, else 0.
struct FakeQuantGrad {
  Tensor x, limits, dout, dx;
  bool accumulate = false;
  GT_OPERANDS(.in("x", o.x).in("limits", o.limits).in("dout", o.dout).out("dx", o.dx, o.accumulate))
};
// Symmetric int8 quantization per row. x [rows, cols] T, scales [rows] f32 >= 0, out [rows, cols] i8:
// out = clamp(nearest-even(x / scale), -127, 127); rows with scale 0: out = 0. Requires: x finite.
struct QuantizeInt8 {
  Tensor x, scales, out;
  GT_OPERANDS(.in("x", o.x).in("scales", o.scales).out("out", o.out))
};
// out = x * scale, rounded to T. x [rows, cols] i8, scales [rows] f32, out [rows, cols] T.
struct DequantizeInt8 {
  Tensor x, scales, out;
  GT_OPERANDS(.in("x", o.x).in("scales", o.scales).out("out", o.out))
};
// out [rows] f32 = max |x| per row of x [rows, cols] T, 0 for empty rows; accumulate: out = max(out, max |x|).
struct MaxAbs {
  Tensor x, out;
  bool accumulate = false;
  GT_OPERANDS(.in("x", o.x).control("out", o.out))
};

// The op list: entry, arguments, AMP class, direction, class, leaf, cost (operands.h). It and the operands above
// generate the table, the null backend, the completeness check, decorators, costs, timers and tests.
#define GT_OPS(X)                                                                        \
  X(gemm, Gemm, kLow, kByArguments, kGemm, kOfParameter, kOwn)                           \
  X(add, Add, kKeep, kNeither, kElementwise, kOfParameter, kPart)                        \
  X(axpy, Axpy, kKeep, kNeither, kElementwise, kOfParameter, kPart)                      \
  X(scale, Scale, kKeep, kNeither, kElementwise, kOfParameter, kPart)                    \
  X(soft_cap, SoftCap, kHigh, kForward, kElementwise, kOfParameter, kPart)               \
  X(copy, Copy, kKeep, kNeither, kElementwise, kOfParameter, kPart)                      \
  X(add_bias, AddBias, kKeep, kForward, kElementwise, kOfParameter, kPart)               \
  X(column_sums, ColumnSums, kHigh, kBackward, kElementwise, kOfParameter, kPart)        \
  X(cast, Cast, kKeep, kNeither, kElementwise, kOfParameter, kPart)                      \
  X(gelu, Gelu, kHigh, kForward, kElementwise, kActivation, kPass)                       \
  X(gelu_grad, GeluGrad, kHigh, kBackward, kElementwise, kActivation, kPass)             \
  X(activate, Activate, kHigh, kForward, kElementwise, kActivation, kPass)               \
  X(activate_grad, ActivateGrad, kHigh, kBackward, kElementwise, kActivation, kPass)     \
  X(dropout, Dropout, kKeep, kNeither, kElementwise, kOfParameter, kPart)                \
  X(layer_norm, LayerNorm, kHigh, kForward, kNorm, kOfParameter, kPass)                  \
  X(layer_norm_grad, LayerNormGrad, kHigh, kBackward, kNorm, kOfParameter, kOwn)         \
  X(qk_norm, QkNorm, kHigh, kForward, kNorm, kOfParameter, kPass)                        \
  X(qk_norm_grad, QkNormGrad, kHigh, kBackward, kNorm, kOfParameter, kPass)              \
  X(qk_row_sums, QkRowSums, kHigh, kByArguments, kNorm, kOfParameter, kPass)             \
  X(qk_row_norm, QkRowNorm, kHigh, kForward, kNorm, kOfParameter, kPass)                 \
  X(qk_row_norm_grad, QkRowNormGrad, kHigh, kBackward, kNorm, kOfParameter, kPass)       \
  X(rope, Rope, kHigh, kByArguments, kElementwise, kAttentionCore, kOwn)                 \
  X(attention, Attention, kLow, kForward, kAttention, kAttentionCore, kOwn)              \
  X(attention_grad, AttentionGrad, kLow, kBackward, kAttention, kAttentionCore, kOwn)    \
  X(store_kv, StoreKv, kKeep, kForward, kElementwise, kAttentionCore, kOwn)              \
  X(cached_attention, CachedAttention, kLow, kForward, kAttention, kAttentionCore, kOwn) \
  X(embedding, Embedding, kKeep, kForward, kEmbedding, kOfParameter, kOwn)               \
  X(embedding_grad, EmbeddingGrad, kKeep, kBackward, kEmbedding, kOfParameter, kOwn)     \
  X(add_position, AddPosition, kKeep, kForward, kEmbedding, kOfParameter, kOwn)          \
  X(position_grad, PositionGrad, kKeep, kBackward, kEmbedding, kOfParameter, kOwn)       \
  X(cross_entropy, CrossEntropy, kHigh, kNeither, kLoss, kLoss, kOwn)                    \
  X(cross_entropy_stats, CrossEntropyStats, kHigh, kForward, kLoss, kLoss, kOwn)         \
  X(cross_entropy_grad, CrossEntropyGrad, kHigh, kBackward, kLoss, kLoss, kOwn)          \
  X(sum, Sum, kHigh, kNeither, kElementwise, kOfParameter, kPart)                        \
  X(sum_squares, SumSquares, kHigh, kNeither, kElementwise, kOfParameter, kOwn)          \
  X(normalize, Normalize, kHigh, kNeither, kElementwise, kOfParameter, kPart)            \
  X(clip_factor, ClipFactor, kHigh, kNeither, kElementwise, kOfParameter, kPart)         \
  X(check_step, CheckStep, kHigh, kNeither, kElementwise, kOfParameter, kPart)           \
  X(adamw, AdamW, kHigh, kNeither, kOptimizer, kOfParameter, kOwn)                       \
  X(sgd, Sgd, kHigh, kNeither, kOptimizer, kOfParameter, kOwn)                           \
  X(lion, Lion, kHigh, kNeither, kOptimizer, kOfParameter, kOwn)                         \
  X(adagrad, Adagrad, kHigh, kNeither, kOptimizer, kOfParameter, kOwn)                   \
  X(lamb_moments, LambMoments, kHigh, kNeither, kOptimizer, kOfParameter, kOwn)          \
  X(lamb_apply, LambApply, kHigh, kNeither, kOptimizer, kOfParameter, kOwn)              \
  X(stochastic_round, StochasticRound, kHigh, kNeither, kOptimizer, kOfParameter, kOwn)  \
  X(fake_quant, FakeQuant, kKeep, kForward, kElementwise, kOfParameter, kPass)           \
  X(fake_quant_grad, FakeQuantGrad, kKeep, kBackward, kElementwise, kOfParameter, kPass) \
  X(max_abs, MaxAbs, kHigh, kNeither, kElementwise, kOfParameter, kPart)                 \
  X(quantize_int8, QuantizeInt8, kKeep, kNeither, kElementwise, kOfParameter, kPass)     \
  X(dequantize_int8, DequantizeInt8, kKeep, kNeither, kElementwise, kOfParameter, kPass) \
  GT_FP8_OPS(X)                                                                          \
  GT_EXPERT_OPS(X)

template <class Args>
using Kernel = void (*)(const Args&, Stream);

struct OpTable {
  const char* name = "";
#define X(entry, Args, ...) Kernel<Args> entry = nullptr;
  GT_OPS(X)
#undef X
};

// Compile-time info of the op with these arguments; undefined for other types.
template <class Args>
struct OpOf;
#define X(name, Args, amp, direction, kind, leaf, cost)                               \
  template <>                                                                         \
  struct OpOf<Args> {                                                                 \
    static constexpr OpInfo kInfo{#name,         AmpClass::amp, Direction::direction, \
                                  OpClass::kind, Leaf::leaf,    CostRule::cost};      \
    static constexpr auto kEntry = &OpTable::name;                                    \
  };
GT_OPS(X)
#undef X

// Returns kForward, kBackward or kNeither.
template <class Args>
constexpr Direction direction_of(const Args& args) {
  if constexpr (OpOf<Args>::kInfo.direction == Direction::kByArguments)
    return args.direction();
  else
    return OpOf<Args>::kInfo.direction;
}

constexpr const char* first_missing(const OpTable& t) {  // nullptr: complete
#define X(entry, Args, ...) \
  if (t.entry == nullptr) return #entry;
  GT_OPS(X)
#undef X
  return nullptr;
}

// Asserts at compile time that a table is complete. Under UBSan function addresses are not constant expressions in GCC;
// backend tests check it at run time there.
#ifdef GPT_SANITIZED
#define GT_COMPLETE_TABLE(table) static_assert(true)
#else
#define GT_COMPLETE_TABLE(table) static_assert(first_missing(table) == nullptr)
#endif

// Returns a table that runs `Hook::before("entry", args)` and then `inner`: profiler ranges, shape logs, FLOP counts,
// NaN checks. One decorated table per Hook type: decorating again replaces the inner table.
template <class Hook>
const OpTable& decorate(const OpTable& inner) {
  static const OpTable* to = nullptr;
  to = &inner;
  static constexpr OpTable table{.name = "decorated",
#define X(entry, Args, ...)              \
  .entry = [](const Args& a, Stream s) { \
    Hook::before(#entry, a);             \
    to->entry(a, s);                     \
  },
                                 GT_OPS(X)
#undef X
  };
  return table;
}

}  // namespace gt
