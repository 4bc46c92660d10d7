#include "parallel/tensor/fp8_linear.h"

namespace gt::ops {
namespace {

// Returns the amax that scales h = `what` (x, of, pre): that of the history, or that of the whole logical tensor,
// computed into `room`.
Tensor amax_of(const Fp8Range& range, const QuantizeFp8& what, Tensor room, const OpTable& ops, Stream stream) {
  if (range.scale.known) return range.scale.amax;
  ops.quantize_fp8({.x = what.x, .fp8 = {.seen = room, .seen_anew = true}, .of = what.of, .pre = what.pre}, stream);
  if (range.split != nullptr) range.split->all_reduce(room, ReduceOp::kMax, stream).wait(stream);
  return room;
}

// A layer as its rules have saved it.
struct Layer {
  Coded x;
  Parameter *w, *b;
  const Fp8Linear* scales;
  mutable GradCodes dy;  // rowwise data for the input rule, the rest for the weight rule, which may be deferred
};

// input_grad: dL/dx is needed.
Layer layer_of(Tape& t, const Coded& x, Parameter& w, Parameter* b, const Fp8Linear& scales, bool input_grad) {
  const int64_t n = x.x.value.shape.rows(), out = w.value.shape[0];
  return {x,
          &w,
          b,
          &scales,
          {.rows = input_grad ? t.later({n, out}, kGradCodes) : Var{},
           .columns = t.later({out, n}, kGradCodes),
           .sums = b != nullptr ? t.later({out}, DType::kF32) : Var{},
           .bias = b,
           .factors = x.factors,
           .scale = &scales.output_grad.scale}};
}

// Requests FP8 data of dL/dy from the op that computes it. Not if several ranks hold columns of it: they would have to
// reduce the amax first.
void ask_for_codes(Tape& t, const Layer* saved, const Var& y) {
  if (saved != nullptr && saved->scales->output_grad.split == nullptr) t.request(y, {.fp8 = &saved->dy});
}

void multiply(Tape& t, const Coded& x, const Parameter& w, const Parameter* b, Tensor y) {
  t.ops().gemm_fp8({.a = x.rows.value,
                    .b = w.codes.rows,
                    .a_scale = x.inverse(),
                    .b_scale = w.codes.inverse,
                    .bias = b ? b->value : Tensor{},
                    .out = y},
                   t.stream());
  t.discard(x.rows);
}

// Quantizes dL/dy = `dy` (x, of, pre) rowwise and columnwise, unless the op that computed it has done so. The same pass
// sums the bias gradient; if weight gradients are deferred, it is added to the parameter in their pass.
void encode_gradient(const Layer& l, QuantizeFp8 dy, Backprop& bp) {
  if (l.dy.made) return;
  const Fp8Range& range = l.scales->output_grad;
  dy.fp8.amax = l.dy.looked ? l.dy.largest() : amax_of(range, dy, l.dy.largest(), bp.ops(), bp.stream());
  if (l.dy.rows.home >= 0) dy.fp8.rows = bp.rebuild(l.dy.rows);
  dy.fp8.columns = bp.rebuild(l.dy.columns);
  dy.fp8.inverse = l.dy.inverse(), dy.fp8.seen = range.scale.seen;
  if (l.b != nullptr && bp.pass() == Pass::kFull) {
    const GradDst db = bp.dst(*l.b);
    dy.sums = db.tensor, dy.accumulate = db.accumulate, l.dy.summed = true;
  } else if (l.b != nullptr) {
    dy.sums = bp.rebuild(l.dy.sums);
  }
  bp.ops().quantize_fp8(dy, bp.stream());
  l.dy.made = true;
}

// Computes dL/dx. Frees the rowwise data of dL/dy.
void input_product(const Layer& l, GradDst dx, Backprop& bp) {
  bp.ops().gemm_fp8({.a = bp.value(l.dy.rows),
                     .b = l.w->codes.columns,
                     .a_scale = l.dy.inverse(),
                     .b_scale = l.w->codes.inverse,
                     .out = dx.tensor,
                     .accumulate = dx.accumulate},
                    bp.stream());
  bp.release(l.dy.rows);
}

void weight_gradients(const Layer& l, Backprop& bp) {
  const bool again = !l.x.has_columns();
  const Shape shape = l.x.x.value.shape;
  const Tensor columns = again ? bp.scratch({shape.cols(), shape.rows()}, kCodes) : bp.value(l.x.columns);
  if (again)
    bp.ops().quantize_fp8({.x = bp.value(l.x.x),
                           .fp8 = {.amax = l.x.amax(), .columns = columns, .inverse = l.x.inverse()},
                           .of = l.x.of},
                          bp.stream());
  const GradDst dw = bp.dst(*l.w);
  bp.ops().gemm_fp8({.a = bp.value(l.dy.columns),
                     .b = columns,
                     .a_scale = l.dy.inverse(),
                     .b_scale = l.x.inverse(),
                     .out = dw.tensor,
                     .accumulate = dw.accumulate},
                    bp.stream());
  if (again) bp.free(columns);
  if (l.b == nullptr || l.dy.summed) return;
  const GradDst db = bp.dst(*l.b);
  if (db.accumulate)
    bp.ops().axpy({.x = bp.value(l.dy.sums), .y = db.tensor}, bp.stream());
  else
    bp.ops().cast({.src = bp.value(l.dy.sums), .dst = db.tensor}, bp.stream());
}

Var room_for(Tape& t, Shape s, DType d, Output where) {
  return where == Output::kTransient ? t.transient(s, d) : t.output(s, d);
}

}  // namespace

Coded encode(Tape& t, Var x, CodesOf of, const Fp8Range& range, Keep keep) {
  const bool kept = keep != Keep::kInputs;
  Coded c = code_room(t, x, range.scale, kept);
  if (!kept) c.columns = {};
  c.of = of;
  QuantizeFp8 q{.x = x.value, .of = of};
  q.fp8 = {.amax = amax_of(range, q, c.largest(), t.ops(), t.stream()),
           .rows = c.rows.value,
           .columns = c.columns.value,
           .inverse = c.inverse(),
           .seen = range.scale.seen};
  t.ops().quantize_fp8(q, t.stream());
  return c;
}

Var fp8_linear(Tape& t, const Coded& x, Parameter& w, Parameter* b, const Fp8Linear& scales, Output where) {
  const Var y = room_for(t, {x.x.value.shape.rows(), w.value.shape[0]}, x.x.value.dtype, where);
  multiply(t, x, w, b, y.value);
  struct Saved {
    Layer layer;
    Var y;
  };
  const Saved* saved =
      t.record(Saved{layer_of(t, x, w, b, scales, x.x.id >= 0), y},
               Rule<Saved>{.input =
                               [](const Saved& s, Backprop& bp) {
                                 encode_gradient(s.layer, {.x = bp.grad(s.y).view(s.y.value.shape)}, bp);
                                 if (bp.wants(s.layer.x.x)) input_product(s.layer, bp.dst(s.layer.x.x), bp);
                               },
                           .weight = [](const Saved& s, Backprop& bp) { weight_gradients(s.layer, bp); }});
  ask_for_codes(t, saved != nullptr ? &saved->layer : nullptr, y);
  return y;
}

Var fp8_mlp(Tape& t, const Coded& x, Fp8Half up, Fp8Half down, Keep keep, Output where) {
  const int64_t n = x.x.value.shape.rows(), inner = up.w.value.shape[0];
  const DType type = x.x.value.dtype;
  const Var y = room_for(t, {n, down.w.value.shape[0]}, type, where);
  const Var pre{t.scratch({n, inner}, type)};
  multiply(t, x, up.w, up.b, pre.value);
  const Coded h = encode(t, pre, CodesOf::kGelu, down.scales.input, keep);
  multiply(t, h, down.w, down.b, y.value);
  struct Saved {
    Layer up, down;
    Var y;
  };
  const Saved* saved = t.record(
      Saved{layer_of(t, x, up.w, up.b, up.scales, x.x.id >= 0), layer_of(t, h, down.w, down.b, down.scales, true), y},
      Rule<Saved>{.input =
                      [](const Saved& s, Backprop& bp) {
                        const Var &x = s.up.x.x, &pre = s.down.x.x;
                        encode_gradient(s.down, {.x = bp.grad(s.y).view(s.y.value.shape)}, bp);
                        const Tensor dh = bp.scratch(pre.value.shape, pre.value.dtype);
                        input_product(s.down, {dh, false}, bp);
                        encode_gradient(s.up, {.x = dh, .of = CodesOf::kGeluGrad, .pre = pre.value}, bp);
                        bp.free(dh);
                        if (bp.wants(x)) input_product(s.up, bp.dst(x), bp);
                      },
                  .weight =
                      [](const Saved& s, Backprop& bp) {
                        weight_gradients(s.down, bp);
                        weight_gradients(s.up, bp);
                      }});
  ask_for_codes(t, saved != nullptr ? &saved->down : nullptr, y);
  return y;
}

}  // namespace gt::ops
