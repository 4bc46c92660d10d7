// Token and position embeddings, and the output head: the vocabulary is split over the tensor axis and padded so that
// every rank holds the same number of rows. Padded rows are 0, never updated and never stored, so results do not depend
// on tp.
#pragma once
#include "autograd/ops.h"
#include "model/module.h"
#include "parallel/tensor/collective_ops.h"

namespace gt {

constexpr int64_t padded_vocab(int64_t vocab, int64_t tp) { return (vocab + 128 * tp - 1) / (128 * tp) * (128 * tp); }

// A [vocab, hidden] table: lookup, head, or (tied) both.
class VocabTable : public Module {
 public:
  // head: loss() will be called.
  VocabTable(std::string name, int64_t vocab, int64_t hidden, const Build& b, DType dtype, bool head)
      : Module(std::move(name)), axis_(b.tensor()), vocab_(vocab), rows_(padded_vocab(vocab, b.tp_size()) / b.tp_size()),
        weight(param("weight", {vocab, hidden}, ShardSpec::replicate(), {Init::Kind::kNormal, b.init_std}, b, dtype)),
        input(head ? input_range(b) : nullptr) {
    weight.fake_quant = b.precision.int8;
    weight.shard = ShardSpec::split(0);
    weight.pad_rows = rows_ * b.tp_size();
    weight.local_shape = {rows_, hidden};
  }
  Var lookup(Tape& t, Tensor tokens) {
    return ops::vocab_embedding(t, tokens, weight, rows_ * axis_.group.rank(), axis_);
  }
  // What enters the head's product.
  Var prepare(Tape& t, Var x) { return ops::cast(t, ops::fake_quant(t, x, input), weight.dtype); }
  Var loss(Tape& t, Var x, const MicroBatch& mb, int64_t chunk) {
    const bool cut = axis_.cut_rows();
    x = prepare(t, x);
    x = cut ? ops::gather_rows(t, x, axis_.group) : ops::copy_to_group(t, x, axis_.group);
    const Var loss = ops::head_cross_entropy(t, x, weight, mb, vocab_, chunk, axis_.group);
    if (cut) t.discard(x);  // gradients are made in the forward: nothing reads it again
    return loss;
  }

 private:
  TensorAxis axis_;
  int64_t vocab_, rows_;

 public:
  Parameter& weight;
  QuantRange* const input;
};

class PositionTable : public Module {
 public:
  PositionTable(std::string name, int64_t positions, int64_t hidden, const Build& b)
      : Module(std::move(name)), axis_(b.tensor()),
        weight_(param("weight", {positions, hidden}, b.whole(), {Init::Kind::kNormal, b.init_std}, b,
                      b.precision.table())) {
    weight_.fake_quant = b.precision.int8;
  }
  Var operator()(Tape& t, Var x, const MicroBatch& mb) {
    if (mb.cache != nullptr && mb.seq == 1) return ops::add_positions(t, x, weight_, mb.positions);
    return ops::add_position(t, x, weight_, mb.seq, axis_.rows(mb).first);
  }

 private:
  TensorAxis axis_;
  Parameter& weight_;
};

}  // namespace gt
