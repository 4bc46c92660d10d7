// Linear layers y = x W^T + b, column-parallel (outputs split over TP ranks) or row-parallel (inputs split). The layer
// selects its collectives from the split, so model code has none. Its arithmetic follows Build::precision: plain,
// fake-quantized to int8 (quantization-aware training), or FP8. Callers need not distinguish these.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "autograd/ops.h"
#include "model/layers/dropout.h"
#include "model/module.h"
#include "parallel/tensor/collective_ops.h"

namespace gt {

// Input of a linear layer: values, or FP8 data written by the preceding norm.
struct Operand {
  Var x;
  Fp8Tensor fp8_data = {};
};

class Linear : public Module {
 public:
  Parameter& weight;
  Parameter* const bias;  // nullptr: none

  // FP8 GEMMs keep FP8 data of their input instead of 16-bit values, except where rows are gathered again.
  ops::Keep kept(ops::Keep keep) const {
    return fp8_ != nullptr && !axis_.splits_rows() && keep == ops::Keep::kOutputs ? ops::Keep::kFp8 : keep;
  }

 protected:
  // input_split, output_split: whether TP ranks hold columns of the input or output.
  Linear(std::string name, const Build& b, bool input_split, bool output_split)
      : Module(std::move(name)),
        weight(param("weight", b)),
        bias(param_if("bias", b)),
        axis_(b.tensor()),
        adapter_(low_rank(b, input_split)),
        input_(input_range(b)),
        fp8_(fp8_linear(b, input_split, output_split)) {
    weight.fp8 = fp8_ != nullptr;
  }
  // Returns x W^T, plus the adapter's product, plus `b` unless it is nullptr.
  Var multiply(Tape& t, const Operand& in, Parameter* b, const MicroBatch& mb, ops::Keep keep,
               ops::Output where = ops::Output::kKept) {
    if (fp8_ == nullptr) {
      const Var y = ops::linear(t, in.x, weight, b, where);
      return adapter_ ? ops::add_low_rank(t, y, in.x, adapter_of(mb)) : y;
    }
    return ops::fp8_linear(t, quantized(t, in, keep), weight, b, *fp8_, where);
  }
  Fp8Tensor quantized(Tape& t, const Operand& in, ops::Keep keep) {
    return in.fp8_data ? in.fp8_data : ops::quantize(t, in.x, Fp8Source::kPlain, fp8_->input, keep);
  }
  TensorAxis axis_;
  const std::optional<ops::LowRank> adapter_;  // its dropout mask is that of no microbatch
  QuantizerState* const input_;                // nullptr: the input is not quantized
  const Fp8Linear* const fp8_;                 // nullptr: no FP8 GEMM

 private:
  // Adapter of this layer, if the model has one. Its blocks are those of the weight.
  std::optional<ops::LowRank> low_rank(const Build& b, bool input_split) {
    Parameter* const a = param_if("lora_a", b);
    if (a == nullptr) return {};
    const LoraConfig& lora = b.config().lora;
    ops::LowRank out{.a = a, .b = &param("lora_b", b), .rank = lora.rank, .scale = lora.scale()};
    const std::string leaf = leaf_class(name()).substr(std::string_view("layers.*.").size());
    for (const int block : lora_blocks(b.config(), leaf))
      out.rows[static_cast<size_t>(out.count++)] =
          block < 0 ? BlockRange{0, out.b->local_shape[0]}
                    : local_block(weight.shard.tp(), weight.full_shape[0], block, b.tp_size());
    const int64_t columns = weight.local_shape[1];
    out.drop.mask = drop_mask(stream_key(b.seed, "dropout/" + name() + ".lora"), lora.dropout);
    out.drop.first_column = input_split ? columns * axis_.group.rank() : 0;
    out.drop.width = weight.full_shape[1];
    return out;
  }
  // Tensor-parallel layers multiply all rows of a microbatch.
  ops::LowRank adapter_of(const MicroBatch& mb) const {
    ops::LowRank out = *adapter_;
    if (mb.train && out.drop)
      out.drop.mask = mask_of(out.drop.mask, mb), out.drop.rows = mb.rows();
    else
      out.drop = {};
    return out;
  }
};

// Column-parallel: W split on `out`, bias split with it.
class ColumnLinear : public Linear {
 public:
  ColumnLinear(std::string name, const Build& b) : Linear(std::move(name), b, false, true) {}

  // Scaling with which the preceding norm quantizes its result; nullptr: the norm returns values. Gathered rows are
  // communicated as values and quantized after the all-gather.
  const Fp8Scaling* fp8_scaling() const {
    return fp8_ != nullptr && !axis_.splits_rows() ? &fp8_->input.scale : nullptr;
  }

  Var operator()(Tape& t, const ops::Normed& n, const MicroBatch& mb, ops::Keep keep) {
    return on_all_rows(t, n, [&](const Operand& all) { return matmul(t, all, mb, keep); });
  }
  // Runs `layer`, a callable Var(const Operand&), on all rows of a norm's result. With sequence parallelism each rank
  // holds its own rows only. They are all-gathered for `layer`, and again for its weight gradient.
  template <class Layer>
  Var on_all_rows(Tape& t, const ops::Normed& n, Layer layer) {
    if (n.fp8_data) {
      Operand all{{}, n.fp8_data};
      all.fp8_data.x = ops::copy_to_group(t, all.fp8_data.x, axis_.group);
      return layer(all);
    }
    const Var x = ops::cast(t, ops::fake_quant(t, n.out, input_), weight.dtype);
    if (!axis_.splits_rows()) return layer(Operand{ops::copy_to_group(t, x, axis_.group)});
    const Var all = ops::gather_rows(t, x, axis_.group), y = layer(Operand{all});
    if (weight.frozen && !adapter_)
      t.discard(all);  // no gradient reads it
    else
      ops::regather_rows(t, x, all, axis_.group);
    return y;
  }
  // GEMM over all rows. Gathered rows are gathered again in the backward: FP8 data of all rows would take more memory
  // than this rank's own rows as values.
  Var matmul(Tape& t, const Operand& all, const MicroBatch& mb, ops::Keep keep) {
    return multiply(t, all, bias, mb, axis_.splits_rows() ? ops::Keep::kInputs : kept(keep));
  }

 private:
  friend class GeluPair;
};

// Row-parallel: W split on `in`, x split to match. The bias is replicated and added once, after the reduction. With
// sequence parallelism that is a reduce-scatter, which leaves each rank its own rows.
class RowLinear : public Linear {
 public:
  RowLinear(std::string name, const Build& b) : Linear(std::move(name), b, true, false) {}

  Var operator()(Tape& t, Var x, const MicroBatch& mb, ops::Keep keep) { return finish(t, matmul(t, x, mb, keep)); }
  // Returns this rank's partial sum.
  Var matmul(Tape& t, Var x, const MicroBatch& mb, ops::Keep keep) {
    return multiply(t, {ops::fake_quant(t, x, input_)}, fused_bias(), mb, kept(keep), output());
  }
  Var finish(Tape& t, Var y) {
    if (axis_.group.size() == 1) return y;
    y = axis_.splits_rows() ? ops::scatter_rows(t, y, axis_.group) : ops::reduce_from_group(t, y, axis_.group);
    return bias != nullptr ? ops::add_bias(t, y, *bias) : y;
  }

 private:
  friend class GeluPair;
  Parameter* fused_bias() { return axis_.group.size() == 1 ? bias : nullptr; }
  ops::Output output() const { return axis_.splits_rows() ? ops::Output::kTransient : ops::Output::kKept; }
};

// down(gelu(up(x))) as one op, with the GELU and its gradient in GEMM epilogues. The input of `down` cannot be
// fake-quantized in between.
class GeluPair {
 public:
  static bool fuses(const ColumnLinear& up, const RowLinear& down) {
    return up.bias != nullptr && down.bias != nullptr && down.input_ == nullptr && !up.adapter_ && !down.adapter_;
  }
  // Returns this rank's partial sum; RowLinear::finish completes it.
  static Var run(Tape& t, const Operand& x, ColumnLinear& up, RowLinear& down, ops::Keep keep) {
    if (up.fp8_ == nullptr)
      return ops::mlp(t, x.x, up.weight, *up.bias, down.weight, down.fused_bias(), keep, down.output());
    return ops::fp8_mlp(t, up.quantized(t, x, ops::Keep::kInputs), {up.weight, up.bias, *up.fp8_},
                        {down.weight, down.fused_bias(), *down.fp8_}, up.kept(keep), down.output());
  }
};

}  // namespace gt
