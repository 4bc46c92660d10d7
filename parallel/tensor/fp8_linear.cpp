#include "parallel/tensor/fp8_linear.h"

namespace gt::ops {
namespace {

constexpr DType kCodes = DType::kF8E4M3, kGradCodes = DType::kF8E5M2;

// Numbers of one use of the layer, f32 [12], the factors at addresses that tensor cores take.
struct Factors {
  Tensor all;
  Tensor input() const { return all.slice(0, 1); }        // what codes of x are multiplied by
  Tensor output_grad() const { return all.slice(4, 1); }  // and those of the gradient of y
  Tensor largest() const { return all.slice(8, 1); }      // |x|
};

struct Saved {
  Var x, y;
  Var dy_columns;  // [out, n], made by the input rule
  Tensor columns;  // codes of x, [in, n]; empty: made again
  Factors factors;
  Parameter *w, *b;
  const Fp8Linear* layer;
};

// What x is scaled by: the largest of steps before, or |x| of the whole logical tensor, for which there is `room`.
Tensor largest_of(const Fp8Range& range, Tensor x, Tensor room, const OpTable& ops, Stream stream) {
  if (range.known) return range.amax;
  ops.max_abs({.x = x, .out = room}, stream);
  if (range.split != nullptr) range.split->all_reduce(room, ReduceOp::kMax, stream).wait(stream);
  return room;
}

void input_gradient(const Saved& s, Backprop& bp) {
  const Tensor dy = bp.grad(s.y), room = bp.scratch({1}, DType::kF32);
  const Tensor largest = largest_of(s.layer->output_grad, dy, room, bp.ops(), bp.stream());
  const Tensor rows = bp.wants(s.x) ? bp.scratch(s.y.value.shape, kGradCodes) : Tensor{};
  bp.ops().quantize_fp8({.x = dy.view(s.y.value.shape),
                         .amax = largest,
                         .rows = rows,
                         .columns = bp.rebuild(s.dy_columns),
                         .inverse = s.factors.output_grad(),
                         .seen = s.layer->output_grad.seen},
                        bp.stream());
  bp.free(room);
  if (!bp.wants(s.x)) return;
  auto [dx, acc] = bp.dst(s.x);
  bp.ops().gemm_fp8({.a = rows,
                     .b = s.w->codes.columns,
                     .a_scale = s.factors.output_grad(),
                     .b_scale = s.w->codes.inverse,
                     .out = dx,
                     .accumulate = acc},
                    bp.stream());
  bp.free(rows);
}

void weight_gradients(const Saved& s, Backprop& bp) {
  Tensor columns = s.columns;
  if (!columns) {
    const Tensor x = bp.value(s.x);
    columns = bp.scratch({x.shape.cols(), x.shape.rows()}, kCodes);
    const Fp8Range& input = s.layer->input;
    bp.ops().quantize_fp8({.x = x,
                           .amax = input.known ? input.amax : s.factors.largest(),
                           .columns = columns,
                           .inverse = s.factors.input()},
                          bp.stream());
  }
  auto [dw, acc] = bp.dst(*s.w);
  bp.ops().gemm_fp8({.a = bp.value(s.dy_columns),
                     .b = columns,
                     .a_scale = s.factors.output_grad(),
                     .b_scale = s.factors.input(),
                     .out = dw,
                     .accumulate = acc},
                    bp.stream());
  if (!s.columns) bp.free(columns);
  if (s.b == nullptr) return;
  auto [db, acc_b] = bp.dst(*s.b);
  bp.ops().sum_rows({.x = bp.grad(s.y), .out = db, .accumulate = acc_b}, bp.stream());
}

}  // namespace

Var fp8_linear(Tape& t, Var x, Parameter& w, Parameter* b, const Fp8Linear& layer, Keep keep, Output where) {
  const int64_t n = x.value.shape.rows(), in = x.value.shape.cols(), out = w.value.shape[0];
  const Var y =
      where == Output::kTransient ? t.transient({n, out}, x.value.dtype) : t.output({n, out}, x.value.dtype);
  const Factors factors{t.scratch({12}, DType::kF32)};
  const bool kept = t.recording() && keep != Keep::kInputs;
  const Tensor columns = kept ? t.scratch({in, n}, kCodes) : Tensor{};
  const Arena::Mark mark = t.activations().mark();
  const Tensor rows = t.scratch({n, in}, kCodes);
  const Tensor largest = largest_of(layer.input, x.value, factors.largest(), t.ops(), t.stream());
  t.ops().quantize_fp8({.x = x.value.view({n, in}),
                        .amax = largest,
                        .rows = rows,
                        .columns = columns,
                        .inverse = factors.input(),
                        .seen = layer.input.seen},
                       t.stream());
  t.ops().gemm_fp8({.a = rows,
                    .b = w.codes.rows,
                    .a_scale = factors.input(),
                    .b_scale = w.codes.inverse,
                    .bias = b ? b->value : Tensor{},
                    .out = y.value},
                   t.stream());
  t.activations().rollback(mark);
  t.record(Saved{x, y, t.later({out, n}, kGradCodes), columns, factors, &w, b, &layer},
           Rule<Saved>{.input = input_gradient, .weight = weight_gradients});
  return y;
}

}  // namespace gt::ops
