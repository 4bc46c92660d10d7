// Differentiable ops, rank-free. One function an op: forward on top, its rule right below (ops_*.cpp). n tokens, C
// hidden.
#pragma once
#include "autograd/coded.h"
#include "autograd/quant_range.h"
#include "autograd/tape.h"
#include "kernels/core/batch.h"

namespace gt::ops {

// What the tape keeps for the backward: what an op computed, or what it can be rebuilt from at the cost of a pass over
// memory.
enum class Keep : uint8_t {
  kOutputs,
  kInputs,
  kCodes,  // what a product of 8 bits keeps of what it reads (fp8_linear): the output itself is not kept
};

// Where an op's output lives. kTransient: only until the next op has consumed it, which no rule does after; that op
// gives it back with Tape::discard.
enum class Output : uint8_t { kKept, kTransient };

// y [n, out] = x [n, in] w^T [in, out] + b
Var linear(Tape&, Var x, Parameter& w, Parameter* b = nullptr, Output = Output::kKept);

// down(gelu(up(x))), both GEMMs with the GELU and its derivative in their epilogues. b_down may be null (row-parallel:
// the bias is added once, after the reduction). kInputs: the GELU's output is made again from its input.
Var mlp(Tape&, Var x, Parameter& w_up, Parameter& b_up, Parameter& w_down, Parameter* b_down, Keep = Keep::kOutputs,
        Output = Output::kKept);

// x in another type: rounded, and its gradient rounded back. The same type: x itself.
Var cast(Tape&, Var x, DType);

// x as int8 codes within the range can say it; notes the largest |x|. The gradient goes straight through within the
// range and is 0 outside. No range: x itself.
Var fake_quant(Tape&, Var x, const QuantRange*);

Var add(Tape&, Var a, Var b);                                     // half beside f32: the sum is f32
Var add_bias(Tape&, Var x, Parameter& b);                         // in place on x, which no other op may have saved
// In place: row i of x is row first_row + i of the microbatch's [batch*seq, C], at position (first_row + i) mod seq.
Var add_position(Tape&, Var x, Parameter& table, int64_t seq, int64_t first_row = 0);
// In place: row i of x is at positions[i] of the table. Not differentiable.
Var add_positions(Tape&, Var x, const Parameter& table, Tensor positions);
Var gelu(Tape&, Var x);

// x times a mask that the backward computes again (kernels/core/dropout.h); in place on x [n, C], which no other op may
// have saved. Without a mask x itself.
Var dropout(Tape&, Var x, const RowDrop&);

// sum = x + delta (dropout(delta) with `drop`), out = norm(sum): the residual add and the norm that follows it. Without
// delta sum is x. With a scale the norm writes codes of its result, which itself is not stored: `out` then has a gradient
// and no value.
struct NormWeights {
  Parameter *gamma, *beta;  // kRms: beta is nullptr
  NormKind kind = NormKind::kLayer;
  float eps = 1e-5f, gamma_offset = 0;
};
struct Normed { Var sum, out; Coded codes = {}; };
Normed add_norm(Tape&, Var x, const Var* delta, const NormWeights&, Keep = Keep::kOutputs, const RowDrop& drop = {},
                const CodeScale* scale = nullptr);
// Once the ops that read `out` have run. kInputs: gives its bytes back; the backward makes it, or the transposed codes,
// again from sum. kCodes: gives them back for good. kOutputs: nothing.
void discard(Tape&, const Normed&, const NormWeights&, Keep);

// Activation of a feed-forward layer; gated: x [n, 2F] is F gates, then F ups (kernels/ops.h, Activate). x feeds nothing
// else. kInputs: `out` is made again from x; discard it as a norm's.
struct Activated { Var in, out; Activation kind; bool gated; };
Activated activate(Tape&, Var x, Activation, bool gated, Keep = Keep::kOutputs);
void discard(Tape&, const Activated&, Keep);

struct AttentionShape { int64_t heads, kv_heads, head_dim; };     // of this rank
// Rotary positions, in place on packed qkv, which no other op may have saved. table: kernels/core/rope.h. Row i is at
// MicroBatch::positions where there are some, else it is row first_row + i of [batch*seq, ...], at its position mod seq.
Var rope(Tape&, Var qkv, AttentionShape, Tensor table, const MicroBatch&, int64_t first_row = 0);
// RMSNorm of each query head and each key head, before rope. q_gamma, k_gamma [head_dim] are shared by all heads: a rank
// of a tensor-parallel layer has a part of their gradients (ShardSpec::partial). In place where nothing is recorded.
Var qk_norm(Tape&, Var qkv, AttentionShape, Parameter& q_gamma, Parameter& k_gamma, float eps, float gamma_offset = 0);
Var causal_attention(Tape&, Var qkv, AttentionShape, const MicroBatch&, const HeadDrop& = {});

// The same for generation (MicroBatch::cache, of this block), which also stores keys and values. Not differentiable.
Var cached_attention(Tape&, Var qkv, AttentionShape, const MicroBatch&);

// ZeRO and gradient-reduction hooks are nodes: in reverse, leave() is met first and enter() last.
void enter(Tape&, ParamScope&);
void leave(Tape&, ParamScope&);

// Activation recomputation: keep only the output, re-run `body` when the gradient arrives.
// `body` is a trivially copyable callable Var(Tape&, Var) whose output has the shape of its input.
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
  struct Saved { Var x, y; Body body; };
  t.record(Saved{x, y, body}, Rule<Saved>{.input = [](const Saved& s, Backprop& bp) {
    Tape& tape = bp.tape();
    const size_t begin = tape.size();
    const Var again = s.body(tape, s.x);
    tape.seed(again, bp.grad(s.y));
    tape.backward(begin, bp.pass());
  }});
  return y;
}

}  // namespace gt::ops
