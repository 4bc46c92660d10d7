// Collectives as differentiable ops; the backward of each is its conjugate collective (Megatron's f and g). Built on
// the public tape API; autograd/ does not depend on ranks. On a group of size 1 each is a no-op.
#pragma once
#include "autograd/ops.h"
#include "autograd/tape.h"
#include "kernels/core/batch.h"
#include "parallel/comm/process_group.h"
#include "parallel/tensor/tensor_axis.h"

namespace gt::ops {

Var copy_to_group(Tape&, Var x, ProcessGroup&);      // forward: x            backward: all-reduce of dx
Var reduce_from_group(Tape&, Var x, ProcessGroup&);  // forward: all-reduce   backward: dx

// Sequence parallelism: between column- and row-parallel layers, rank i of a group of t holds rows [i n/t, (i+1) n/t)
// of n.
// gather_rows: x [n/t, C] -> all [n, C]. Forward: all-gather; backward: reduce-scatter. After the last op that reads
// `all`, regather_rows frees it and gathers it again in the backward for the rules that read it. If no rule reads it,
// Tape::discard is enough.
Var gather_rows(Tape&, Var x, ProcessGroup&);
void regather_rows(Tape&, Var x, Var all, ProcessGroup&);
// Partial sums [n, C] -> this rank's rows of their sum [n/t, C]. Forward: reduce-scatter; backward: all-gather.
// Requires: `partial` is transient and no rule reads it.
Var scatter_rows(Tape&, Var partial, ProcessGroup&);

// RMSNorm of each row's queries together, and of its keys, over all heads of the group's ranks, before rope. gamma of
// this rank's channels (ShardSpec::qk). In place where nothing is recorded.
Var qk_row_norm(Tape&, Var qkv, AttentionShape, Parameter& gamma, float eps, ProcessGroup&);

// Rows of `table` (this rank's slice of the padded vocabulary, first row `first_row`) for tokens [batch, seq]; summed
// over the group. Result [batch*seq, C], or this rank's rows of it.
Var vocab_embedding(Tape&, Tensor tokens, Parameter& table, int64_t first_row, const TensorAxis&);

// Rows 0, seq, 2 seq, ... of the microbatch's [batch*seq, C]: the first tokens of its sequences, [batch, C], on every
// rank. x: all rows, or this rank's. Requires: the other readers of x are recorded later.
Var first_tokens(Tape&, Var x, const MicroBatch&, const TensorAxis&);

// Sum of token losses of the microbatch, f64 [1], and, without recording, the number of hits, f64 [2]
// (ops::class_cross_entropy): cross-entropy of x W^T + b over a vocabulary split over the group,
// `chunk` rows at a time, so that the full logits never exist. x [n, C], w [V local, C], columns >= vocab are padding.
// The gradient of the root is known before the backward starts (mb.dloss[0]), so dx and dW are made in the forward
// while the logits are in cache when the tape records. softcap: of the logits; z_loss: kernels/ops.h, CrossEntropyGrad.
// b [V local]: ops::parameter, recorded last before this; nullptr: none.
Var head_cross_entropy(Tape&, Var x, Parameter& w, const MicroBatch&, int64_t vocab, int64_t chunk, ProcessGroup&,
                       float softcap = 0, float z_loss = 0, const Var* b = nullptr);

}  // namespace gt::ops
