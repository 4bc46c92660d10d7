// Low-rank adapters of linear layers.
#include "autograd/ops.h"

namespace gt::ops {
namespace {

struct LowRankSaved {
  Var x, y, out, dh;
  Tensor h;  // [blocks, n, rank], scaled
  LowRank l;
};

Tensor block_of(Tensor stacked, int k) { return stacked.slice(k, 1).view({stacked.shape[1], stacked.shape[2]}); }
Tensor rows_of_a(const LowRank& l, Tensor a, int k) { return a.slice(k * l.rank, l.rank); }
bool covers_all(const LowRank& l) { return l.count == 1 && l.rows[0].count == l.b->local_shape[0]; }

// Writes B with rows outside of block k set to 0.
void expand_block(const OpTable& ops, const LowRank& l, int k, Tensor out, Stream s) {
  const BlockRange r = l.rows[static_cast<size_t>(k)];
  ops.scale({.x = l.b->value, .out = out, .factor = 0}, s);
  ops.copy({.src = l.b->value.slice(r.first, r.count), .dst = out.slice(r.first, r.count)}, s);
}

// dL/dh of every block, into `dh`, for the scaled h.
void hidden_gradients(const LowRankSaved& s, Backprop& bp, Tensor dh) {
  const bool all = covers_all(s.l);
  const Tensor expanded = all ? Tensor{} : bp.scratch(s.l.b->local_shape, s.l.b->dtype);
  for (int k = 0; k < s.l.count; ++k) {
    if (!all) expand_block(bp.ops(), s.l, k, expanded, bp.stream());
    bp.ops().gemm({.a = bp.grad(s.out), .b = all ? s.l.b->value : expanded, .out = block_of(dh, k)}, bp.stream());
  }
  if (!all) bp.free(expanded);
  bp.ops().scale({.x = dh, .out = dh, .factor = s.l.scale}, bp.stream());
}

// dB: of each block its rows of dy^T h; rows of no block get 0.
void output_gradient(const LowRankSaved& s, Backprop& bp) {
  const LowRank& l = s.l;
  const Tensor dy = bp.grad(s.out);
  const auto [db, accumulate] = bp.dst(*l.b);
  if (covers_all(l)) {
    bp.ops().gemm({.a = dy, .b = block_of(s.h, 0), .out = db, .trans_a = true, .accumulate = accumulate}, bp.stream());
    return;
  }
  const Tensor result = bp.scratch(db.shape, db.dtype);
  for (int k = 0; k < l.count; ++k) {
    const BlockRange r = l.rows[static_cast<size_t>(k)];
    bp.ops().gemm({.a = dy, .b = block_of(s.h, k), .out = result, .trans_a = true}, bp.stream());
    if (k == 0 && !accumulate) bp.ops().scale({.x = result, .out = db, .factor = 0}, bp.stream());
    bp.ops().axpy({.x = result.slice(r.first, r.count), .y = db.slice(r.first, r.count)}, bp.stream());
  }
  bp.free(result);
}

// dx: the sum over blocks of dh A.
void input_gradient(const LowRankSaved& s, Backprop& bp, Tensor dh) {
  const Tensor dx = bp.scratch(s.x.value.shape, s.x.value.dtype);
  for (int k = 0; k < s.l.count; ++k)
    bp.ops().gemm({.a = block_of(dh, k), .b = rows_of_a(s.l, s.l.a->value, k), .out = dx, .accumulate = k > 0},
                  bp.stream());
  if (s.l.drop) bp.ops().dropout({.x = dx, .out = dx, .drop = s.l.drop}, bp.stream());
  bp.forward_grad(s.x, dx);
  bp.free(dx);
}

// dA (+)= dh^T drop(x)
void gradient_of_a(const LowRankSaved& s, Backprop& bp) {
  const Tensor x = bp.value(s.x), in = s.l.drop ? bp.scratch(x.shape, x.dtype) : x, dh = bp.value(s.dh);
  if (s.l.drop) bp.ops().dropout({.x = x, .out = in, .drop = s.l.drop}, bp.stream());
  const auto [da, accumulate] = bp.dst(*s.l.a);
  for (int k = 0; k < s.l.count; ++k)
    bp.ops().gemm(
        {.a = block_of(dh, k), .b = in, .out = rows_of_a(s.l, da, k), .trans_a = true, .accumulate = accumulate},
        bp.stream());
  if (s.l.drop) bp.free(in);
}

}  // namespace

Var add_low_rank(Tape& t, Var y, Var x, const LowRank& l) {
  const int64_t n = x.value.shape.rows();
  const bool all = covers_all(l);
  const Tensor h = t.scratch({l.count, n, l.rank}, x.value.dtype);
  const Arena::Mark mark = t.activations().mark();
  const Tensor expanded = all ? Tensor{} : t.scratch(l.b->local_shape, l.b->dtype);
  const Tensor result = t.scratch(y.value.shape, y.value.dtype);
  const Tensor in = l.drop ? t.scratch(x.value.shape, x.value.dtype) : x.value;
  if (l.drop) t.ops().dropout({.x = x.value, .out = in, .drop = l.drop}, t.stream());
  for (int k = 0; k < l.count; ++k) {
    const Tensor hk = block_of(h, k);
    t.ops().gemm({.a = in, .b = rows_of_a(l, l.a->value, k), .out = hk, .trans_b = true}, t.stream());
    t.ops().scale({.x = hk, .out = hk, .factor = l.scale}, t.stream());
    if (!all) expand_block(t.ops(), l, k, expanded, t.stream());
    t.ops().gemm({.a = hk, .b = all ? l.b->value : expanded, .out = result, .trans_b = true}, t.stream());
    t.ops().add({.a = y.value, .b = result, .out = y.value}, t.stream());
  }
  t.activations().rollback(mark);
  const Var out = t.view_of(y);
  t.record(
      LowRankSaved{x, y, out, t.later(h.shape, h.dtype), h, l},
      [](const LowRankSaved& s, Backprop& bp) {
        const Tensor dh = bp.rebuild(s.dh);
        hidden_gradients(s, bp, dh);
        if (bp.needs_grad(s.x)) input_gradient(s, bp, dh);
        bp.forward_grad(s.y, bp.grad(s.out));
      },
      [](const LowRankSaved& s, Backprop& bp) {
        output_gradient(s, bp);
        gradient_of_a(s, bp);
      });
  return out;
}

}  // namespace gt::ops
