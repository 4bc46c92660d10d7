// Token and position embeddings, and the output head. The vocabulary is split over TP ranks and padded to an equal
// number of rows on each. Padded rows are 0, never updated and never stored, so results do not depend on tp.
#pragma once
#include <cmath>

#include "autograd/ops.h"
#include "model/module.h"
#include "parallel/tensor/collective_ops.h"

namespace gt {

// Factor of token embeddings of this dtype (Gemma): sqrt(hidden), rounded to it before they are multiplied.
inline float embed_scale(int64_t hidden, DType type) {
  const int bits = type == DType::kBF16 ? 8 : type == DType::kF16 ? 11 : 24;  // of the significand
  int exponent = 0;
  const double fraction = std::frexp(std::sqrt(static_cast<double>(hidden)), &exponent);
  return static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(fraction, bits)), exponent - bits));
}

// A [vocab, hidden] table: lookup, head, or (tied) both.
class VocabTable : public Module {
 public:
  // head: loss() will be called. bias: of the logits; nullptr: none.
  VocabTable(std::string name, const Build& b, bool head)
      : Module(std::move(name)),
        axis_(b.tensor()),
        vocab_(b.config().vocab),
        softcap_(static_cast<float>(b.config().logit_softcap)),
        z_loss_(static_cast<float>(b.config().z_loss)),
        scale_(b.config().scale_embed ? embed_scale(b.config().hidden, b.precision.table()) : 1),
        weight(param("weight", b)),
        input(head ? input_range(b) : nullptr) {}
  Var lookup(Tape& t, Tensor tokens) {
    return ops::scale(t, ops::vocab_embedding(t, tokens, weight, weight.local_shape[0] * axis_.group.rank(), axis_),
                      scale_);
  }
  // Casts or fake-quantizes x as the head's GEMM reads it.
  Var prepare(Tape& t, Var x) { return ops::cast(t, ops::fake_quant(t, x, input), weight.dtype); }
  Var loss(Tape& t, Var x, const MicroBatch& mb, int64_t chunk, const Var* bias = nullptr) {
    const bool cut = axis_.splits_rows();
    x = prepare(t, x);
    x = cut ? ops::gather_rows(t, x, axis_.group) : ops::copy_to_group(t, x, axis_.group);
    const Var sums =
        ops::head_cross_entropy(t, x, weight, mb, vocab_, chunk, axis_.group, softcap_, mb.train ? z_loss_ : 0, bias);
    if (cut) t.discard(x);  // gradients are made in the forward: nothing reads it again
    return sums;
  }
  // Logits of rows of its input, f32 [rows, local padded vocab]; records nothing. bias: as in loss().
  Tensor logits(Tape& t, Tensor rows, Parameter* bias = nullptr) {
    const Tensor narrow = ops::linear(t, prepare(t, Var{rows}), weight, bias).value;
    const Tensor out = narrow.dtype == DType::kF32 ? narrow : t.scratch(narrow.shape, DType::kF32);
    if (out.data != narrow.data) t.ops().cast({.src = narrow, .dst = out}, t.stream());
    if (softcap_ > 0) t.ops().soft_cap({.x = out, .out = out, .cap = softcap_}, t.stream());
    return out;
  }

 private:
  TensorAxis axis_;
  int64_t vocab_;
  float softcap_, z_loss_, scale_;

 public:
  Parameter& weight;
  QuantizerState* const input;
};

class PositionTable : public Module {
 public:
  PositionTable(std::string name, const Build& b)
      : Module(std::move(name)), axis_(b.tensor()), weight_(param("weight", b)) {}
  Var operator()(Tape& t, Var x, const MicroBatch& mb) {
    if (mb.cache != nullptr && mb.seq == 1) return ops::add_rows(t, x, weight_, mb.positions);
    return ops::add_position(t, x, weight_, mb.rows(axis_.rows(mb).first), mb.documents());
  }

 private:
  TensorAxis axis_;
  Parameter& weight_;
};

// Token types [types, hidden], added to the embeddings of MicroBatch::types.
class TypeTable : public Module {
 public:
  TypeTable(std::string name, const Build& b)
      : Module(std::move(name)), axis_(b.tensor()), weight_(param("weight", b)) {}
  Var operator()(Tape& t, Var x, const MicroBatch& mb) {
    const RowSlice held = axis_.rows(mb);
    return ops::add_rows(t, x, weight_, mb.types.view({mb.batch * mb.seq}).slice(held.first, held.rows));
  }

 private:
  TensorAxis axis_;
  Parameter& weight_;
};

}  // namespace gt
