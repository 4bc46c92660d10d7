// Routed layers: routing, and the two linear layers of experts.
#include "autograd/expert_ops.h"

namespace gt::ops {
namespace {

struct Groups {
  Tensor slots, rows, offsets;  // row r is that of token slots[r] / top_k
  int64_t top_k = 1, bound = 0;
};
Groups groups_of(const Routing& r) {
  if (r.tokens) return {r.tokens, r.rows, r.offsets, 1, r.bound};
  return {r.slots, r.rows, r.offsets, r.experts.shape.cols()};
}

}  // namespace

Var router_logits(Tape& t, Var x, Parameter& w) {
  Var y = t.output({x.value.shape.rows(), w.value.shape[0]}, DType::kF32);
  t.ops().gemm({.a = x.value, .b = w.value, .out = y.value, .trans_b = true, .row_independent = true}, t.stream());
  struct Saved {
    Var x, y;
    Parameter* w;
  };
  t.record(
      Saved{x, y, &w},
      [](const Saved& s, Backprop& bp) {
        if (!bp.needs_grad(s.x)) return;
        const auto [dx, accumulate] = bp.dst(s.x);
        bp.ops().gemm({.a = bp.grad(s.y), .b = s.w->value, .out = dx, .accumulate = accumulate}, bp.stream());
      },
      [](const Saved& s, Backprop& bp) {
        const auto [dw, accumulate] = bp.dst(*s.w);
        if (!dw) return;
        bp.ops().gemm({.a = bp.grad(s.y), .b = bp.value(s.x), .out = dw, .trans_a = true, .accumulate = accumulate},
                      bp.stream());
      });
  return y;
}

Routing route(Tape& t, Var logits, int64_t top_k, const Gate& gate, Tensor bias, Tensor counts) {
  const int64_t n = logits.value.shape.rows(), experts = logits.value.shape.cols();
  Routing r{.logits = logits, .weights = t.output({n, top_k}, DType::kF32), .gate = gate};
  r.experts = t.scratch({n, top_k}, DType::kI32);
  r.slots = t.scratch({n * top_k}, DType::kI32);
  r.rows = t.scratch({n, top_k}, DType::kI32);
  r.offsets = t.scratch({experts + 1}, DType::kI32);
  t.ops().route({.logits = logits.value,
                 .experts = r.experts,
                 .weights = r.weights.value,
                 .gate = gate,
                 .bias = bias,
                 .counts = counts},
                t.stream());
  t.ops().group_rows({.experts = r.experts, .slots = r.slots, .rows = r.rows, .offsets = r.offsets}, t.stream());
  t.record(r, [](const Routing& s, Backprop& bp) {
    const auto [dlogits, accumulate] = bp.dst(s.logits);
    bp.ops().route_grad({.logits = s.logits.value,
                         .experts = s.experts,
                         .dweights = bp.grad(s.weights),
                         .dlogits = dlogits,
                         .gate = s.gate,
                         .accumulate = accumulate},
                        bp.stream());
  });
  return r;
}

Var balance_loss(Tape& t, const Routing& r, int64_t seq, Tensor seed, Tensor dlogits) {
  const Var sum = t.output({1}, DType::kF64);
  const Arena::Mark mark = t.activations().mark();
  const Tensor each = t.scratch({r.logits.value.shape.rows() / seq}, DType::kF32);
  t.ops().balance_loss({.logits = r.logits.value,
                        .experts = r.experts,
                        .seed = seed,
                        .loss = each,
                        .dlogits = dlogits,
                        .seq = seq,
                        .kind = r.gate.kind},
                       t.stream());
  t.ops().sum({.x = each, .out = sum.value}, t.stream());
  t.activations().rollback(mark);
  struct Saved {
    Var logits;
    Tensor dlogits;
  };
  if (dlogits)
    t.record(Saved{r.logits, dlogits}, [](const Saved& s, Backprop& bp) { bp.forward_grad(s.logits, s.dlogits); });
  return sum;
}

Var expert_linear(Tape& t, Var x, const Routing& r, Parameter& w) {
  const Groups g = groups_of(r);
  Var y = t.output({g.slots.numel(), w.value.shape[1]}, x.value.dtype);
  t.bound(y, g.bound);
  t.ops().grouped_gemm({.a = x.value,
                        .b = w.value,
                        .slots = g.slots,
                        .offsets = g.offsets,
                        .out = y.value,
                        .top_k = g.top_k,
                        .trans_b = true},
                       t.stream());
  struct Saved {
    Var x, y;
    Groups g;
    Parameter* w;
  };
  t.record(
      Saved{x, y, g, &w},
      [](const Saved& s, Backprop& bp) {
        if (!bp.needs_grad(s.x)) return;
        const Tensor each = bp.scratch({s.g.slots.numel(), s.x.value.shape.cols()}, s.x.value.dtype, s.g.bound);
        bp.ops().grouped_gemm({.a = bp.grad(s.y), .b = s.w->value, .offsets = s.g.offsets, .out = each}, bp.stream());
        Var slots = s.x;
        slots.value.shape = {s.g.rows.shape[0], s.x.value.shape.cols()};
        const auto [dx, accumulate] = bp.dst(slots);
        bp.ops().combine_rows({.x = each, .rows = s.g.rows, .out = dx, .accumulate = accumulate}, bp.stream());
        bp.free(each);
      },
      [](const Saved& s, Backprop& bp) {
        const auto [dw, accumulate] = bp.dst(*s.w);
        if (!dw) return;
        bp.ops().grouped_gemm_grad({.a = bp.grad(s.y),
                                    .b = bp.value(s.x),
                                    .slots = s.g.slots,
                                    .offsets = s.g.offsets,
                                    .out = dw,
                                    .top_k = s.g.top_k,
                                    .accumulate = accumulate},
                                   bp.stream());
      });
  return y;
}

ExpertActivated expert_activate(Tape& t, Var x, const Routing& r, Activation kind, bool gated, Keep keep) {
  const Shape shape{x.value.shape.rows(), x.value.shape.cols() / (gated ? 2 : 1)};
  const Var y = keep == Keep::kOutputs ? t.output(shape, x.value.dtype) : t.transient(shape, x.value.dtype, r.bound);
  t.bound(y, r.bound);
  const ExpertActivated saved{x, r.weights, y, r.slots, kind, gated};
  t.ops().expert_activate({x.value, r.weights.value, r.slots, y.value, kind, gated}, t.stream());
  t.record(saved, [](const ExpertActivated& s, Backprop& bp) {
    const GradDst dx = bp.dst(s.in), dweights = bp.dst(s.weights);
    GT_CHECK(!dx.accumulate && !dweights.accumulate, "what enters the activation of experts feeds it alone");
    bp.ops().expert_activate_grad({.x = bp.value(s.in),
                                   .weights = s.weights.value,
                                   .slots = s.slots,
                                   .dout = bp.grad(s.out),
                                   .dx = dx.tensor,
                                   .dweights = dweights.tensor,
                                   .kind = s.kind,
                                   .gated = s.gated},
                                  bp.stream());
  });
  return saved;
}

void discard(Tape& t, const ExpertActivated& a, Keep keep) {
  if (keep == Keep::kOutputs) return;
  t.discard(a.out);
  t.record(a, [](const ExpertActivated& s, Backprop& bp) {
    bp.ops().expert_activate({bp.value(s.in), s.weights.value, s.slots, bp.rebuild(s.out), s.kind, s.gated},
                             bp.stream());
  });
}

Var expert_combine(Tape& t, Var x, const Routing& r, Parameter& w, Output where) {
  const Groups g = groups_of(r);
  const Shape shape{g.rows.shape[0], w.value.shape[1]};
  Var y = where == Output::kTransient ? t.transient(shape, x.value.dtype, g.bound) : t.output(shape, x.value.dtype);
  const Arena::Mark mark = t.activations().mark();
  const Tensor each = t.scratch({g.slots.numel(), shape[1]}, x.value.dtype);
  t.ops().grouped_gemm({.a = x.value, .b = w.value, .offsets = g.offsets, .out = each, .trans_b = true}, t.stream());
  t.ops().combine_rows({.x = each, .rows = g.rows, .out = y.value}, t.stream());
  t.activations().rollback(mark);
  struct Saved {
    Var x, y;
    Groups g;
    Parameter* w;
  };
  t.record(
      Saved{x, y, g, &w},
      [](const Saved& s, Backprop& bp) {
        const GradDst dx = bp.dst(s.x);
        GT_CHECK(!dx.accumulate, "what enters the second layer of experts feeds it alone");
        bp.ops().grouped_gemm({.a = bp.grad(s.y),
                               .b = s.w->value,
                               .slots = s.g.slots,
                               .offsets = s.g.offsets,
                               .out = dx.tensor,
                               .top_k = s.g.top_k},
                              bp.stream());
      },
      [](const Saved& s, Backprop& bp) {
        const auto [dw, accumulate] = bp.dst(*s.w);
        if (!dw) return;
        bp.ops().grouped_gemm_grad({.a = bp.grad(s.y),
                                    .b = bp.value(s.x),
                                    .slots = s.g.slots,
                                    .offsets = s.g.offsets,
                                    .out = dw,
                                    .top_k = s.g.top_k,
                                    .gather_a = true,
                                    .accumulate = accumulate},
                                   bp.stream());
      });
  return y;
}

}  // namespace gt::ops
