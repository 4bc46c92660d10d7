#include "parallel/tensor/fp8_linear.h"

namespace gt::ops {
namespace {

// What h, which is `what` (x, of, pre), is scaled by: the largest of steps before, or of the whole logical tensor, for
// which there is `room`.
Tensor amax_of(const Fp8Range& range, const QuantizeFp8& what, Tensor room, const OpTable& ops, Stream stream) {
  if (range.scale.known) return range.scale.amax;
  ops.quantize_fp8({.x = what.x, .seen = room, .of = what.of, .pre = what.pre, .seen_anew = true}, stream);
  if (range.split != nullptr) range.split->all_reduce(room, ReduceOp::kMax, stream).wait(stream);
  return room;
}

// A layer as its rules see it.
struct Layer {
  Coded x;
  Parameter *w, *b;
  const Fp8Linear* scales;
  Var dy_columns, db;  // made by the input rule: [out, n], and, where weight gradients are deferred, f32 [out]
};

Layer layer_of(Tape& t, const Coded& x, Parameter& w, Parameter* b, const Fp8Linear& scales) {
  const int64_t n = x.x.value.shape.rows(), out = w.value.shape[0];
  return {x, &w, b, &scales, t.later({out, n}, kGradCodes), b != nullptr ? t.later({out}, DType::kF32) : Var{}};
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

// Codes of the gradient of y, which is `dy` (x, of, pre): rows, where these are wanted, and columns for the weight. The
// bias' gradient is summed in the same pass; where weight gradients are deferred, to be added in theirs.
void encode_gradient(const Layer& l, QuantizeFp8 dy, Tensor rows, Backprop& bp) {
  const Fp8Range& range = l.scales->output_grad;
  const Tensor room = bp.scratch({1}, DType::kF32);
  dy.amax = amax_of(range, dy, room, bp.ops(), bp.stream());
  dy.rows = rows, dy.columns = bp.rebuild(l.dy_columns);
  dy.inverse = l.x.grad_inverse(), dy.seen = range.scale.seen;
  if (l.b != nullptr && bp.pass() == Pass::kFull) {
    const GradDst db = bp.dst(*l.b);
    dy.sums = db.tensor, dy.accumulate = db.accumulate;
  } else if (l.b != nullptr) {
    dy.sums = bp.rebuild(l.db);
  }
  bp.ops().quantize_fp8(dy, bp.stream());
  bp.free(room);
}

void input_product(const Layer& l, Tensor rows, GradDst dx, Backprop& bp) {
  bp.ops().gemm_fp8({.a = rows,
                     .b = l.w->codes.columns,
                     .a_scale = l.x.grad_inverse(),
                     .b_scale = l.w->codes.inverse,
                     .out = dx.tensor,
                     .accumulate = dx.accumulate},
                    bp.stream());
}

void weight_gradients(const Layer& l, Backprop& bp) {
  const bool again = !l.x.has_columns();
  const Shape shape = l.x.x.value.shape;
  const Tensor columns = again ? bp.scratch({shape.cols(), shape.rows()}, kCodes) : bp.value(l.x.columns);
  if (again)
    bp.ops().quantize_fp8({.x = bp.value(l.x.x),
                           .amax = l.x.amax(),
                           .columns = columns,
                           .inverse = l.x.inverse(),
                           .of = l.x.of},
                          bp.stream());
  const GradDst dw = bp.dst(*l.w);
  bp.ops().gemm_fp8({.a = bp.value(l.dy_columns),
                     .b = columns,
                     .a_scale = l.x.grad_inverse(),
                     .b_scale = l.x.inverse(),
                     .out = dw.tensor,
                     .accumulate = dw.accumulate},
                    bp.stream());
  if (again) bp.free(columns);
  if (l.b == nullptr || bp.pass() != Pass::kWeight) return;
  const GradDst db = bp.dst(*l.b);
  if (db.accumulate)
    bp.ops().axpy({.x = bp.value(l.db), .y = db.tensor}, bp.stream());
  else
    bp.ops().cast({.src = bp.value(l.db), .dst = db.tensor}, bp.stream());
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
  q.amax = amax_of(range, q, c.largest(), t.ops(), t.stream());
  q.rows = c.rows.value, q.columns = c.columns.value, q.inverse = c.inverse(), q.seen = range.scale.seen;
  t.ops().quantize_fp8(q, t.stream());
  return c;
}

Var fp8_linear(Tape& t, const Coded& x, Parameter& w, Parameter* b, const Fp8Linear& scales, Output where) {
  const Var y = room_for(t, {x.x.value.shape.rows(), w.value.shape[0]}, x.x.value.dtype, where);
  multiply(t, x, w, b, y.value);
  struct Saved { Layer layer; Var y; };
  t.record(Saved{layer_of(t, x, w, b, scales), y},
           Rule<Saved>{
               .input =
                   [](const Saved& s, Backprop& bp) {
                     const Var& x = s.layer.x.x;
                     const Tensor rows = bp.wants(x) ? bp.scratch(s.y.value.shape, kGradCodes) : Tensor{};
                     encode_gradient(s.layer, {.x = bp.grad(s.y).view(s.y.value.shape)}, rows, bp);
                     if (!rows) return;
                     input_product(s.layer, rows, bp.dst(x), bp);
                     bp.free(rows);
                   },
               .weight = [](const Saved& s, Backprop& bp) { weight_gradients(s.layer, bp); }});
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
  struct Saved { Layer up, down; Var y; };
  t.record(Saved{layer_of(t, x, up.w, up.b, up.scales), layer_of(t, h, down.w, down.b, down.scales), y},
           Rule<Saved>{
               .input =
                   [](const Saved& s, Backprop& bp) {
                     const Var &x = s.up.x.x, &pre = s.down.x.x;
                     Tensor rows = bp.scratch(s.y.value.shape, kGradCodes);
                     encode_gradient(s.down, {.x = bp.grad(s.y).view(s.y.value.shape)}, rows, bp);
                     const Tensor dh = bp.scratch(pre.value.shape, pre.value.dtype);
                     input_product(s.down, rows, {dh, false}, bp);
                     bp.free(rows);
                     rows = bp.wants(x) ? bp.scratch(pre.value.shape, kGradCodes) : Tensor{};
                     encode_gradient(s.up, {.x = dh, .of = CodesOf::kGeluGrad, .pre = pre.value}, rows, bp);
                     bp.free(dh);
                     if (!rows) return;
                     input_product(s.up, rows, bp.dst(x), bp);
                     bp.free(rows);
                   },
               .weight =
                   [](const Saved& s, Backprop& bp) {
                     weight_gradients(s.down, bp);
                     weight_gradients(s.up, bp);
                   }});
  return y;
}

}  // namespace gt::ops
