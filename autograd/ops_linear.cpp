// Linear layers and the fused MLP.
#include "autograd/ops.h"

namespace gt::ops {
namespace {

// db (+)= column sums of dy
void bias_gradient(Backprop& bp, Tensor dy, Parameter& b) {
  const GradDst db = bp.dst(b);
  if (db.tensor) bp.ops().column_sums({.x = dy, .out = db.tensor, .accumulate = db.accumulate}, bp.stream());
}

// dW (+)= dy^T x and, with b, db (+)= column sums of dy.
void weight_gradients(Backprop& bp, Tensor dy, const Var& x, Parameter& w, Parameter* b) {
  if (w.frozen) {
    if (b != nullptr) bias_gradient(bp, dy, *b);
    return;
  }
  const GradDst dw = bp.dst(w), db = b != nullptr ? bp.dst(*b) : GradDst{};
  bp.ops().gemm({.a = dy,
                 .b = bp.value(x),
                 .out = dw.tensor,
                 .trans_a = true,
                 .accumulate = dw.accumulate,
                 .dbias = db.tensor,
                 .accumulate_dbias = db.accumulate,
                 .squares = grad_squares(w)},
                bp.stream());
}

// y = x w^T + b
void forward(Tape& t, Tensor x, Parameter& w, Parameter* b, Tensor y) {
  t.ops().gemm(
      {.a = x, .b = w.value, .bias = b ? b->value : Tensor{}, .out = y, .trans_b = true, .b_version = w.version},
      t.stream());
}

Var allocate_result(Tape& t, Shape s, DType d, Output where) {
  return where == Output::kTransient ? t.transient(s, d) : t.output(s, d);
}

}  // namespace

Var linear(Tape& t, Var x, Parameter& w, Parameter* b, Output where) {
  Var y = allocate_result(t, {x.value.shape.rows(), w.value.shape[0]}, x.value.dtype, where);
  forward(t, x.value, w, b, y.value);
  t.request(y, {.bias = b});
  struct Saved {
    Var x, y;
    Parameter *w, *b;
  };
  t.record(
      Saved{x, y, &w, b},
      [](const Saved& s, Backprop& bp) {
        if (!bp.needs_grad(s.x)) return;
        auto [dx, acc] = bp.dst(s.x);
        bp.ops().gemm({.a = bp.grad(s.y), .b = s.w->value, .out = dx, .accumulate = acc, .b_version = s.w->version},
                      bp.stream());
      },
      [](const Saved& s, Backprop& bp) {
        weight_gradients(bp, bp.grad(s.y), s.x, *s.w, bp.bias_done(s.y) ? nullptr : s.b);
      });
  return y;
}

Var fake_quant(Tape& t, Var x, const QuantizerState* range) {
  if (range == nullptr) return x;
  t.ops().max_abs({.x = x.value, .out = range->step_amax, .accumulate = true}, t.stream());
  Var y = t.output(x.value.shape, x.value.dtype);
  t.ops().fake_quant({.x = x.value, .limits = range->limit, .out = y.value}, t.stream());
  struct Saved {
    Var x, y;
    Tensor limit;
  };
  t.record(Saved{x, y, range->limit}, [](const Saved& s, Backprop& bp) {
    if (!bp.needs_grad(s.x)) return;
    auto [dx, acc] = bp.dst(s.x);
    bp.ops().fake_quant_grad({.x = bp.value(s.x), .limits = s.limit, .dout = bp.grad(s.y), .dx = dx, .accumulate = acc},
                             bp.stream());
  });
  return y;
}

Var mlp(Tape& t, Var x, Parameter& w_up, Parameter& b_up, Parameter& w_down, Parameter* b_down, Keep keep,
        Output where) {
  const int64_t n = x.value.shape.rows(), inner = w_up.value.shape[0];
  Var y = allocate_result(t, {n, w_down.value.shape[0]}, x.value.dtype, where);
  Tensor pre = t.scratch({n, inner}, x.value.dtype);
  const Arena::Mark kept = t.activations().mark();
  Var h = t.output({n, inner}, x.value.dtype);  // its gradient slot holds d(pre-activation), computed once, read twice
  t.ops().gemm({.a = x.value,
                .b = w_up.value,
                .bias = b_up.value,
                .aux = pre,
                .out = h.value,
                .trans_b = true,
                .epilogue = Epilogue::kGelu,
                .b_version = w_up.version},
               t.stream());
  forward(t, h.value, w_down, b_down, y.value);
  if (keep == Keep::kInputs) t.activations().rollback(kept);
  t.request(y, {.bias = b_down});
  struct Saved {
    Var x, h, y;
    Tensor pre;
    Parameter *w_up, *b_up, *w_down, *b_down;
    Keep keep;
  };
  t.record(
      Saved{x, h, y, pre, &w_up, &b_up, &w_down, b_down, keep},
      [](const Saved& s, Backprop& bp) {
        Tensor dpre = bp.dst(s.h).tensor;
        const GradDst db = bp.pass() == Pass::kFull ? bp.dst(*s.b_up) : GradDst{};
        bp.ops().gemm({.a = bp.grad(s.y),
                       .b = s.w_down->value,
                       .aux = s.pre,
                       .out = dpre,
                       .epilogue = Epilogue::kGeluGrad,
                       .b_version = s.w_down->version,
                       .dbias = db.tensor,
                       .accumulate_dbias = db.accumulate},
                      bp.stream());
        if (!bp.needs_grad(s.x)) return;
        auto [dx, acc] = bp.dst(s.x);
        bp.ops().gemm({.a = dpre, .b = s.w_up->value, .out = dx, .accumulate = acc, .b_version = s.w_up->version},
                      bp.stream());
      },
      [](const Saved& s, Backprop& bp) {
        const bool again = s.keep == Keep::kInputs;  // in place: the input rule has run and was the last reader of pre
        if (again && !s.w_down->frozen) bp.ops().gelu({.x = s.pre, .out = s.pre}, bp.stream());
        weight_gradients(bp, bp.grad(s.y), again ? Var{s.pre} : s.h, *s.w_down, bp.bias_done(s.y) ? nullptr : s.b_down);
        weight_gradients(bp, bp.grad(s.h), s.x, *s.w_up,
                         bp.pass() == Pass::kFull ? nullptr : s.b_up);  // the input rule has computed it
      });
  return y;
}

Var add_bias(Tape& t, Var x, Parameter& b) {
  t.ops().add_bias({.x = x.value, .bias = b.value, .out = x.value}, t.stream());
  Var y = t.output_of(x.value);
  t.request(y, {.bias = &b});
  t.forward_request(y, x);
  struct Saved {
    Var x, y;
    Parameter* b;
  };
  t.record(
      Saved{x, y, &b}, [](const Saved& s, Backprop& bp) { bp.forward_grad(s.x, bp.grad(s.y)); },
      [](const Saved& s, Backprop& bp) {
        if (!bp.bias_done(s.y)) bias_gradient(bp, bp.grad(s.y), *s.b);
      });
  return y;
}

}  // namespace gt::ops
