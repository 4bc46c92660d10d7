// y = x W^T + b, cut over the tensor axis by columns (outputs) or rows (inputs). The layer picks its collectives from
// the cut, so model code has none.
#pragma once
#include "autograd/ops.h"
#include "model/module.h"
#include "parallel/tensor/collective_ops.h"

namespace gt {

// Runs a column-parallel layer on all rows of x. With sequence parallelism x holds this rank's rows: all of them exist
// while the layer runs, and once more for its weight gradient.
template <class Layer>
Var on_all_rows(Tape& t, Var x, const TensorAxis& axis, Layer layer) {
  if (!axis.cut_rows()) return layer(ops::copy_to_group(t, x, axis.group));
  const Var all = ops::gather_rows(t, x, axis.group), y = layer(all);
  ops::regather_rows(t, x, all, axis.group);
  return y;
}

// Column-parallel: W split on `out` (`cut`: by blocks of heads for a fused qkv), bias split with it.
class ColumnLinear : public Module {
 public:
  ColumnLinear(std::string name, int64_t in, int64_t out, const Build& b, ShardSpec cut = ShardSpec::split(0))
      : Module(std::move(name)), axis_(b.tensor()),
        weight(param("weight", {out, in}, cut, {Init::Kind::kNormal, b.init_std}, b, b.precision.linear())),
        bias(param("bias", {out}, cut, {Init::Kind::kZero}, b, b.precision.linear())),
        input(input_range(b)), fp8(fp8_linear(b, false, true)) {
    weight.fake_quant = b.precision.int8;
    weight.fp8 = fp8 != nullptr;
  }
  // What enters the product, before anything is sent.
  Var prepare(Tape& t, Var x) { return ops::cast(t, ops::fake_quant(t, x, input), weight.dtype); }
  // Gathered rows are gathered again: their codes would take more than the halves of this rank's own.
  Var product(Tape& t, Var all, ops::Keep keep) {
    if (fp8 == nullptr) return ops::linear(t, all, weight, &bias);
    return ops::fp8_linear(t, all, weight, &bias, *fp8, axis_.cut_rows() ? ops::Keep::kInputs : keep);
  }
  // How the norm in front is to encode its result; nullptr: it gives values. Rows that are gathered go as halves, and are
  // encoded once they are all there.
  const CodeScale* codes() const { return fp8 != nullptr && !axis_.cut_rows() ? &fp8->input.scale : nullptr; }
  Coded for_group(Tape& t, Coded x) {
    x.x = ops::copy_to_group(t, x.x, axis_.group);
    return x;
  }
  Var operator()(Tape& t, const ops::Normed& n, ops::Keep keep) {
    if (n.codes) return ops::fp8_linear(t, for_group(t, n.codes), weight, &bias, *fp8);
    const Var x = prepare(t, n.out);
    return on_all_rows(t, x, axis_, [&](Var all) { return product(t, all, keep); });
  }

 private:
  TensorAxis axis_;

 public:
  Parameter &weight, &bias;
  QuantRange* const input;
  const Fp8Linear* const fp8;
};

// Row-parallel: W split on `in`, x split to match. The bias is whole on every rank and added once, after the reduction,
// which with sequence parallelism leaves each rank its own rows.
class RowLinear : public Module {
 public:
  RowLinear(std::string name, int64_t in, int64_t out, float init_std, const Build& b)
      : Module(std::move(name)), axis_(b.tensor()),
        weight(param("weight", {out, in}, ShardSpec::split(1), {Init::Kind::kNormal, init_std}, b,
                     b.precision.linear())),
        bias(param("bias", {out}, b.whole(), {Init::Kind::kZero}, b, b.precision.linear())),
        input(input_range(b)), fp8(fp8_linear(b, true, false)) {
    weight.fake_quant = b.precision.int8;
    weight.fp8 = fp8 != nullptr;
  }
  Var product(Tape& t, Var x, ops::Keep keep) {
    if (fp8 != nullptr) return ops::fp8_linear(t, x, weight, fused_bias(), *fp8, keep, output());
    return ops::linear(t, ops::fake_quant(t, x, input), weight, fused_bias(), output());
  }
  Var operator()(Tape& t, Var x, ops::Keep keep) { return finish(t, product(t, x, keep)); }

  // For ops that contain this layer's GEMM: the bias to fuse (alone) or nothing, where its product lives, and what is
  // left to do after it.
  Parameter* fused_bias() { return axis_.group.size() == 1 ? &bias : nullptr; }
  ops::Output output() const { return axis_.cut_rows() ? ops::Output::kTransient : ops::Output::kKept; }
  Var finish(Tape& t, Var y) {
    if (axis_.group.size() == 1) return y;
    y = axis_.cut_rows() ? ops::scatter_rows(t, y, axis_.group) : ops::reduce_from_group(t, y, axis_.group);
    return ops::add_bias(t, y, bias);
  }

 private:
  TensorAxis axis_;

 public:
  Parameter &weight, &bias;
  QuantRange* const input;
  const Fp8Linear* const fp8;
};

}  // namespace gt
