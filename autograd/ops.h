// Differentiable ops, independent of ranks. One function per op: the forward, its rule right below (ops_*.cpp). n:
// tokens, C: hidden size.
#pragma once
#include <array>

#include "autograd/fp8_tensor.h"
#include "autograd/quantizer_state.h"
#include "autograd/tape.h"
#include "kernels/core/batch.h"

namespace gt::ops {

// Tensors that the tape keeps for the backward: an op's output, or the inputs from which one pass over memory
// recomputes it.
enum class Keep : uint8_t {
  kOutputs,
  kInputs,
  kFp8,  // columnwise FP8 data for fp8_linear; the output itself is not kept
};

// Lifetime of an op's output. kTransient: until the next op has consumed it; that op frees it with Tape::discard, and
// no backward rule reads it afterwards.
enum class Output : uint8_t { kKept, kTransient };

// y [n, out] = x [n, in] w^T [in, out] + b
Var linear(Tape&, Var x, Parameter& w, Parameter* b = nullptr, Output = Output::kKept);

// Low-rank adapter of a linear layer (Hu et al. 2021, arXiv 2106.09685). Block k of the outputs, `rows` of B, has
// rows [k rank, (k + 1) rank) of A. A [count * rank, in], B [out, rank]; outputs of no block are left alone.
struct LowRank {
  Parameter *a = nullptr, *b = nullptr;
  int64_t rank = 0;
  float scale = 1;
  int count = 0;
  std::array<BlockRange, 3> rows = {};
  RowDrop drop = {};  // of x
};
// y + scale B (A drop(x)), in place on y, which no other op may have saved.
Var add_low_rank(Tape&, Var y, Var x, const LowRank&);

// down(gelu(up(x))): two GEMMs with GELU and its derivative in their epilogues. b_down may be null (row-parallel: the
// bias is added once, after the reduction). kInputs: the GELU output is recomputed from its input.
Var mlp(Tape&, Var x, Parameter& w_up, Parameter& b_up, Parameter& w_down, Parameter* b_down, Keep = Keep::kOutputs,
        Output = Output::kKept);

// Casts x to another dtype; its gradient is cast back. The same dtype: returns x.
Var cast(Tape&, Var x, DType);

// Fake-quantizes x to int8 within the range and records max |x| (QuantizerState::step_amax). Straight-through
// gradient within the range, 0 outside. Without a range returns x.
Var fake_quant(Tape&, Var x, const QuantizerState*);

// The parameter's value, copied: for an op that runs outside of its FSDP unit. Its gradient may be of another dtype.
Var parameter(Tape&, Parameter&);

Var add(Tape&, Var a, Var b);              // 16-bit plus f32 gives f32
Var add_bias(Tape&, Var x, Parameter& b);  // in place on x, which no other op may have saved
// In place. documents: MicroBatch::documents() of the whole microbatch; empty: positions are those of the rows of x.
Var add_position(Tape&, Var x, Parameter& table, const Positions&, Tensor documents = {});
// In place: adds row indices[i] of the table to row i of x. indices i32 [n].
Var add_rows(Tape&, Var x, Parameter& table, Tensor indices);
Var gelu(Tape&, Var x);

// Multiplies x [n, C] by a dropout mask, which the backward recomputes (kernels/core/dropout.h). In place on x, which
// no other op may have saved. Without a mask returns x.
Var dropout(Tape&, Var x, const RowDrop&);

// factor x, in place on x, which no other op may have saved.
Var scale(Tape&, Var x, float factor);

// Residual add and the norm that follows it: sum = x + delta (dropout(delta) with `drop`), out = norm(sum). Without
// delta, sum is x. With a scale the norm writes FP8 data instead of its result: `out` then has a gradient and no value.
struct NormWeights {
  Parameter *gamma, *beta;  // kRms: beta is nullptr
  NormKind kind = NormKind::kLayer;
  float eps = 1e-5f, gamma_offset = 0;
};
struct Normed {
  Var sum, out;
  Fp8Tensor fp8_data = {};
};
Normed add_norm(Tape&, Var x, const Var* delta, const NormWeights&, Keep = Keep::kOutputs, const RowDrop& drop = {},
                const Fp8Scaling* scale = nullptr);
// Call once the ops that read `out` have run. kInputs: frees it; the backward recomputes it, or its columnwise FP8
// data, from sum. kFp8: frees it for good. kOutputs: no effect.
void discard(Tape&, const Normed&, const NormWeights&, Keep);

// Activation of a feed-forward layer. gated: x [n, 2F] is F gates, then F ups (kernels/ops.h, Activate). No other op
// may read x. kInputs: `out` is recomputed from x; discard it like a norm's.
struct Activated {
  Var in, out;
  Activation kind;
  bool gated;
};
Activated activate(Tape&, Var x, Activation, bool gated, Keep = Keep::kOutputs);
void discard(Tape&, const Activated&, Keep);

// Heads of this rank. window, softcap, full: kernels/ops.h, Attention. scale: of scores; 0: 1 / sqrt(head_dim).
struct AttentionShape {
  int64_t heads, kv_heads, head_dim, window = 0;
  float softcap = 0, scale = 0;
  bool full = false;
};
// Rotary embedding, in place on packed qkv, which no other op may have saved. table: kernels/core/rope.h. qkv:
// all rows of the microbatch, at MicroBatch::positions if set.
Var rope(Tape&, Var qkv, AttentionShape, Tensor table, const MicroBatch&);
// RMSNorm of the queries and the keys of each head, before rope. gamma [2 * head_dim], of queries, then of keys, is
// shared by all heads: a TP rank has a partial sum of its gradient (ShardSpec::partial). In place unless recording.
Var qk_norm(Tape&, Var qkv, AttentionShape, Parameter& gamma, float eps, float gamma_offset = 0);
// full: sequences end at MicroBatch::lengths.
Var self_attention(Tape&, Var qkv, AttentionShape, const MicroBatch&, const HeadDrop& = {});

// Attention for generation; also stores keys and values in this block's KV cache (MicroBatch::cache). Not
// differentiable.
Var cached_attention(Tape&, Var qkv, AttentionShape, const MicroBatch&);

// Sum of the losses of rows of logits [n, classes], f64 [1]; targets i32 [n], -1: no loss. The gradient of the root is
// known before the backward starts: seed, f32 [1], is d(objective)/d(this sum). Without recording f64 [2]: also the
// number of hits, rows whose target has the largest logit.
Var class_cross_entropy(Tape&, Var logits, Tensor targets, Tensor seed);

// Copies the result of a cross-entropy, f64 [1] or with hits [2], to MicroBatch::sums and, if requested, hits.
void keep_loss(Tape&, const MicroBatch&, int index, const Var& sums);

// Nodes that call the hooks of an FSDP unit (all-gather, gradient reduction). The backward runs leave() first and
// enter() last.
void enter(Tape&, ParamUnit&);
void leave(Tape&, ParamUnit&);

// Activation recomputation: keeps only the output and re-runs `body` in the backward. Requires: `body` is a trivially
// copyable callable Var(Tape&, Var) whose output has the shape of its input.
template <class Body>
Var recompute(Tape& t, Var x, Body body) {
  if (!t.recording()) return body(t, x);
  Var y = t.output(x.value.shape, x.value.dtype);
  const Arena::Mark mark = t.activations().mark();
  t.set_recording(false);
  const Var inner = body(t, x);
  t.set_recording(true);
  t.ops().copy({.src = inner.value, .dst = y.value}, t.stream());
  t.activations().rollback(mark);
  struct Saved {
    Var x, y;
    Body body;
  };
  t.record(Saved{x, y, body}, [](const Saved& s, Backprop& bp) {
    Tape& tape = bp.tape();
    const size_t begin = tape.size();
    const Var again = s.body(tape, s.x);
    tape.seed(again, bp.grad(s.y));
    tape.backward(begin, bp.pass());
  });
  return y;
}

}  // namespace gt::ops
