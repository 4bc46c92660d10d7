// Ops of Llama-style blocks: gated activations, rotary positions, norms of queries and keys.
#include "autograd/ops.h"

namespace gt::ops {

Activated activate(Tape& t, Var x, Activation kind, bool gated, Keep keep) {
  const Shape shape{x.value.shape.rows(), x.value.shape.cols() / (gated ? 2 : 1)};
  const Var y = keep == Keep::kOutputs ? t.output(shape, x.value.dtype) : t.transient(shape, x.value.dtype);
  t.ops().activate({.x = x.value, .out = y.value, .kind = kind, .gated = gated}, t.stream());
  const Activated saved{x, y, kind, gated};
  t.record(saved, [](const Activated& a, Backprop& bp) {
    if (!bp.needs_grad(a.in)) return;
    ActivateGrad args{.x = bp.value(a.in), .dout = bp.grad(a.out), .kind = a.kind, .gated = a.gated};
    if (!a.gated && bp.sole_owner(a.out)) {  // dout has no later reader: dx overwrites it
      args.dx = args.dout;
      bp.ops().activate_grad(args, bp.stream());
      return bp.forward_grad(a.in, args.dx);
    }
    const GradDst dx = bp.dst(a.in);
    GT_CHECK(!dx.accumulate, "what enters an activation feeds it alone");
    args.dx = dx.tensor;
    bp.ops().activate_grad(args, bp.stream());
  });
  return saved;
}

void discard(Tape& t, const Activated& a, Keep keep) {
  if (keep == Keep::kOutputs) return;
  t.discard(a.out);
  if (keep == Keep::kFp8) return;
  t.record(a, [](const Activated& s, Backprop& bp) {
    bp.ops().activate({.x = bp.value(s.in), .out = bp.rebuild(s.out), .kind = s.kind, .gated = s.gated}, bp.stream());
  });
}

Var rope(Tape& t, Var qkv, AttentionShape a, Tensor table, const MicroBatch& mb) {
  Rope args{.x = qkv.value,
            .table = table,
            .positions = mb.positions ? mb.positions.view({mb.positions.numel()}) : Tensor{},
            .heads = a.heads + a.kv_heads,
            .head_dim = a.head_dim,
            .rows = mb.rows()};
  t.ops().rope(args, t.stream());
  const Var y = t.output_of(qkv.value);
  struct Saved {
    Var qkv, y;
    Rope args;
  };
  t.record(Saved{qkv, y, args}, [](const Saved& s, Backprop& bp) {
    if (!bp.needs_grad(s.qkv)) return;
    const Tensor dy = bp.grad(s.y);
    const bool in_place = bp.sole_owner(s.y);  // dy has no later reader
    Rope back = s.args;
    back.x = in_place ? dy : bp.scratch(dy.shape, dy.dtype);
    back.backward = true;
    if (!in_place) bp.ops().copy({.src = dy, .dst = back.x}, bp.stream());
    bp.ops().rope(back, bp.stream());
    bp.forward_grad(s.qkv, back.x);
    if (!in_place) bp.free(back.x);
  });
  return y;
}

namespace {
struct QkNormSaved {
  Var qkv, y;
  Tensor rstd;
  Parameter* gamma;
  AttentionShape shape;
  float gamma_offset;
};

// Returns the query part of gamma (which 0) or its key part (which 1).
Tensor qk_gamma(Tensor gamma, AttentionShape a, int64_t which) { return gamma.slice(which * a.head_dim, a.head_dim); }

QkNormGrad arguments(const QkNormSaved& s, Backprop& bp, bool weights) {
  QkNormGrad args{.qkv = bp.value(s.qkv),
                  .q_gamma = qk_gamma(s.gamma->value, s.shape, 0),
                  .k_gamma = qk_gamma(s.gamma->value, s.shape, 1),
                  .rstd = s.rstd,
                  .dout = bp.grad(s.y),
                  .heads = s.shape.heads,
                  .kv_heads = s.shape.kv_heads,
                  .head_dim = s.shape.head_dim,
                  .gamma_offset = s.gamma_offset};
  if (!weights || s.gamma->frozen) return args;
  const GradDst d = bp.dst(*s.gamma);
  args.dq_gamma = qk_gamma(d.tensor, s.shape, 0), args.dk_gamma = qk_gamma(d.tensor, s.shape, 1);
  args.accumulate_dw = d.accumulate;
  return args;
}
}  // namespace

Var qk_norm(Tape& t, Var qkv, AttentionShape a, Parameter& gamma, float eps, float gamma_offset) {
  const int64_t rows = qkv.value.shape.rows();
  const Var y = t.recording() ? t.output(qkv.value.shape, qkv.value.dtype) : qkv;
  const Tensor rstd = t.scratch({rows, a.heads + a.kv_heads}, DType::kF32);
  t.ops().qk_norm({.qkv = qkv.value,
                   .q_gamma = qk_gamma(gamma.value, a, 0),
                   .k_gamma = qk_gamma(gamma.value, a, 1),
                   .out = y.value,
                   .rstd = rstd,
                   .heads = a.heads,
                   .kv_heads = a.kv_heads,
                   .head_dim = a.head_dim,
                   .eps = eps,
                   .gamma_offset = gamma_offset},
                  t.stream());
  t.record(
      QkNormSaved{qkv, y, rstd, &gamma, a, gamma_offset},
      [](const QkNormSaved& s, Backprop& bp) {
        QkNormGrad args = arguments(s, bp, bp.pass() == Pass::kFull);
        // dout has no later reader unless weight gradients are deferred.
        const bool in_place = bp.sole_owner(s.y) && bp.pass() == Pass::kFull;
        args.dqkv = in_place ? args.dout : bp.scratch(args.dout.shape, args.dout.dtype);
        bp.ops().qk_norm_grad(args, bp.stream());
        bp.forward_grad(s.qkv, args.dqkv);
        if (!in_place) bp.free(args.dqkv);
      },
      [](const QkNormSaved& s, Backprop& bp) {
        if (bp.pass() == Pass::kWeight && !s.gamma->frozen) bp.ops().qk_norm_grad(arguments(s, bp, true), bp.stream());
      });
  return y;
}

}  // namespace gt::ops
