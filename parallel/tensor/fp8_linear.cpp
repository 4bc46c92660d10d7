#include "parallel/tensor/fp8_linear.h"

namespace gt::ops {
namespace {

// Returns the amax that scales h = `what` (x, of, pre): that of the history, or that of the whole logical tensor,
// computed into `workspace`.
Tensor scaling_amax(const Fp8State& range, const QuantizeFp8& what, Tensor workspace, const OpTable& ops,
                    Stream stream) {
  if (range.scale.has_history) return range.scale.amax;
  ops.quantize_fp8(
      {.x = what.x, .fp8 = {.step_amax = workspace, .overwrite_amax = true}, .of = what.of, .pre = what.pre}, stream);
  if (range.split != nullptr) range.split->all_reduce(workspace, ReduceOp::kMax, stream).wait(stream);
  return workspace;
}

// A layer as its rules have saved it.
struct Layer {
  Fp8Tensor x;
  Parameter *w, *b;
  const Fp8Linear* scales;
  mutable Fp8Grad dy;  // rowwise data for the input rule, the rest for the weight rule, which may be deferred
};

// input_grad: dL/dx is needed.
Layer layer_of(Tape& t, const Fp8Tensor& x, Parameter& w, Parameter* b, const Fp8Linear& scales, bool input_grad) {
  const int64_t n = x.x.value.shape.rows(), out = w.value.shape[0];
  return {x,
          &w,
          b,
          &scales,
          {.rowwise = input_grad ? t.later({n, out}, kFp8Grad) : Var{},
           .columnwise = t.later({out, n}, kFp8Grad),
           .sums = b != nullptr ? t.later({out}, DType::kF32) : Var{},
           .bias = b,
           .factors = x.factors,
           .scale = &scales.output_grad.scale}};
}

// Requests FP8 data of dL/dy from the op that computes it. Not if several ranks hold columns of it: they would have to
// reduce the amax first.
void request_fp8_grad(Tape& t, const Layer* saved, const Var& y) {
  if (saved != nullptr && saved->scales->output_grad.split == nullptr) t.request(y, {.fp8 = &saved->dy});
}

void multiply(Tape& t, const Fp8Tensor& x, const Parameter& w, const Parameter* b, Tensor y) {
  t.ops().gemm_fp8({.a = x.rowwise.value,
                    .b = w.fp8_data.rowwise,
                    .a_scale = x.scale_inv(),
                    .b_scale = w.fp8_data.scale_inv,
                    .bias = b ? b->value : Tensor{},
                    .out = y},
                   t.stream());
  t.discard(x.rowwise);
}

// Quantizes dL/dy = `dy` (x, of, pre) rowwise and columnwise, unless the op that computed it has done so. The same pass
// sums the bias gradient; if weight gradients are deferred, it is added to the parameter in their pass.
void quantize_grad(const Layer& l, QuantizeFp8 dy, Backprop& bp) {
  if (l.dy.quantized) return;
  const Fp8State& range = l.scales->output_grad;
  dy.fp8.amax =
      l.dy.has_amax ? l.dy.current_amax() : scaling_amax(range, dy, l.dy.current_amax(), bp.ops(), bp.stream());
  if (l.dy.rowwise.home >= 0) dy.fp8.rowwise = bp.rebuild(l.dy.rowwise);
  dy.fp8.columnwise = bp.rebuild(l.dy.columnwise);
  dy.fp8.scale_inv = l.dy.scale_inv(), dy.fp8.step_amax = range.scale.step_amax;
  if (l.b != nullptr && bp.pass() == Pass::kFull) {
    const GradDst db = bp.dst(*l.b);
    dy.sums = db.tensor, dy.accumulate = db.accumulate, l.dy.bias_done = true;
  } else if (l.b != nullptr) {
    dy.sums = bp.rebuild(l.dy.sums);
  }
  bp.ops().quantize_fp8(dy, bp.stream());
  l.dy.quantized = true;
}

// Computes dL/dx. Frees the rowwise data of dL/dy.
void input_gradient(const Layer& l, GradDst dx, Backprop& bp) {
  bp.ops().gemm_fp8({.a = bp.value(l.dy.rowwise),
                     .b = l.w->fp8_data.columnwise,
                     .a_scale = l.dy.scale_inv(),
                     .b_scale = l.w->fp8_data.scale_inv,
                     .out = dx.tensor,
                     .accumulate = dx.accumulate},
                    bp.stream());
  bp.release(l.dy.rowwise);
}

void weight_gradients(const Layer& l, Backprop& bp) {
  const bool again = !l.x.has_columnwise();
  const Shape shape = l.x.x.value.shape;
  const Tensor columns = again ? bp.scratch({shape.cols(), shape.rows()}, kFp8) : bp.value(l.x.columnwise);
  if (again)
    bp.ops().quantize_fp8({.x = bp.value(l.x.x),
                           .fp8 = {.amax = l.x.amax(), .columnwise = columns, .scale_inv = l.x.scale_inv()},
                           .of = l.x.of},
                          bp.stream());
  const GradDst dw = bp.dst(*l.w);
  bp.ops().gemm_fp8({.a = bp.value(l.dy.columnwise),
                     .b = columns,
                     .a_scale = l.dy.scale_inv(),
                     .b_scale = l.x.scale_inv(),
                     .out = dw.tensor,
                     .accumulate = dw.accumulate},
                    bp.stream());
  if (again) bp.free(columns);
  if (l.b == nullptr || l.dy.bias_done) return;
  const GradDst db = bp.dst(*l.b);
  if (db.accumulate)
    bp.ops().axpy({.x = bp.value(l.dy.sums), .y = db.tensor}, bp.stream());
  else
    bp.ops().cast({.src = bp.value(l.dy.sums), .dst = db.tensor}, bp.stream());
}

Var allocate_output(Tape& t, Shape s, DType d, Output where) {
  return where == Output::kTransient ? t.transient(s, d) : t.output(s, d);
}

}  // namespace

Fp8Tensor quantize(Tape& t, Var x, Fp8Source of, const Fp8State& range, Keep keep) {
  const bool kept = keep != Keep::kInputs;
  Fp8Tensor c = allocate_fp8(t, x, range.scale, kept);
  if (!kept) c.columnwise = {};
  c.of = of;
  QuantizeFp8 q{.x = x.value, .of = of};
  q.fp8 = {.amax = scaling_amax(range, q, c.current_amax(), t.ops(), t.stream()),
           .rowwise = c.rowwise.value,
           .columnwise = c.columnwise.value,
           .scale_inv = c.scale_inv(),
           .step_amax = range.scale.step_amax};
  t.ops().quantize_fp8(q, t.stream());
  return c;
}

Var fp8_linear(Tape& t, const Fp8Tensor& x, Parameter& w, Parameter* b, const Fp8Linear& scales, Output where) {
  const Var y = allocate_output(t, {x.x.value.shape.rows(), w.value.shape[0]}, x.x.value.dtype, where);
  multiply(t, x, w, b, y.value);
  struct Saved {
    Layer layer;
    Var y;
  };
  const Saved* saved = t.record(
      Saved{layer_of(t, x, w, b, scales, x.x.id >= 0), y},
      [](const Saved& s, Backprop& bp) {
        quantize_grad(s.layer, {.x = bp.grad(s.y).view(s.y.value.shape)}, bp);
        if (bp.needs_grad(s.layer.x.x)) input_gradient(s.layer, bp.dst(s.layer.x.x), bp);
      },
      [](const Saved& s, Backprop& bp) { weight_gradients(s.layer, bp); });
  request_fp8_grad(t, saved != nullptr ? &saved->layer : nullptr, y);
  return y;
}

Var fp8_mlp(Tape& t, const Fp8Tensor& x, Fp8MlpLayer up, Fp8MlpLayer down, Keep keep, Output where) {
  const int64_t n = x.x.value.shape.rows(), inner = up.w.value.shape[0];
  const DType type = x.x.value.dtype;
  const Var y = allocate_output(t, {n, down.w.value.shape[0]}, type, where);
  const Var pre{t.scratch({n, inner}, type)};
  multiply(t, x, up.w, up.b, pre.value);
  const Fp8Tensor h = quantize(t, pre, Fp8Source::kGelu, down.scales.input, keep);
  multiply(t, h, down.w, down.b, y.value);
  struct Saved {
    Layer up, down;
    Var y;
  };
  const Saved* saved = t.record(
      Saved{layer_of(t, x, up.w, up.b, up.scales, x.x.id >= 0), layer_of(t, h, down.w, down.b, down.scales, true), y},
      [](const Saved& s, Backprop& bp) {
        const Var &x = s.up.x.x, &pre = s.down.x.x;
        quantize_grad(s.down, {.x = bp.grad(s.y).view(s.y.value.shape)}, bp);
        const Tensor dh = bp.scratch(pre.value.shape, pre.value.dtype);
        input_gradient(s.down, {dh, false}, bp);
        quantize_grad(s.up, {.x = dh, .of = Fp8Source::kGeluGrad, .pre = pre.value}, bp);
        bp.free(dh);
        if (bp.needs_grad(x)) input_gradient(s.up, bp.dst(x), bp);
      },
      [](const Saved& s, Backprop& bp) {
        weight_gradients(s.down, bp);
        weight_gradients(s.up, bp);
      });
  request_fp8_grad(t, saved != nullptr ? &saved->down : nullptr, y);
  return y;
}

}  // namespace gt::ops
