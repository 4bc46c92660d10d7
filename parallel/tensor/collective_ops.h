// Collectives as differentiable ops: each one's backward is its mirror image (Megatron's f and g). Built on the public
// tape API; autograd/ knows nothing of ranks. On a group of size 1 each is free.
#pragma once
#include "autograd/tape.h"
#include "kernels/core/batch.h"
#include "parallel/comm/process_group.h"
#include "parallel/tensor/tensor_axis.h"

namespace gt::ops {

Var copy_to_group(Tape&, Var x, ProcessGroup&);      // forward: x            backward: all-reduce of dx
Var reduce_from_group(Tape&, Var x, ProcessGroup&);  // forward: all-reduce   backward: dx

// Sequence parallelism: between column and row layers rank i of a group of t holds rows [i n/t, (i+1) n/t) of n.
// gather_rows: x [n/t, C] -> all [n, C]. Forward: all-gather; backward: reduce-scatter. After the last op that reads
// `all`, regather_rows gives its bytes back and has the backward gather it again for the rules that read it; where none
// does, Tape::discard is enough.
Var gather_rows(Tape&, Var x, ProcessGroup&);
void regather_rows(Tape&, Var x, Var all, ProcessGroup&);
// Partial sums [n, C], transient, which no rule reads -> this rank's rows of their sum [n/t, C]. Forward:
// reduce-scatter; backward: all-gather.
Var scatter_rows(Tape&, Var partial, ProcessGroup&);

// Rows of `table` (this rank's slice of the padded vocabulary, first row `first_row`) for tokens [batch, seq]; summed
// over the group. Result [batch*seq, C], or this rank's rows of it.
Var vocab_embedding(Tape&, Tensor tokens, Parameter& table, int64_t first_row, const TensorAxis&);

// Sum of token losses of the microbatch, f64 [1]: cross-entropy of x W^T over a vocabulary split over the group,
// `chunk` rows at a time, so that the full logits never exist. x [n, C], w [V local, C], columns >= vocab are padding.
// The gradient of the root is known before the backward starts (mb.loss_seed), so dx and dW are made in the forward
// while the logits are in cache when the tape records.
Var head_cross_entropy(Tape&, Var x, Parameter& w, const MicroBatch&, int64_t vocab, int64_t chunk, ProcessGroup&);

}  // namespace gt::ops
