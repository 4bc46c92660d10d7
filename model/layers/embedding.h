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
  VocabTable(std::string name, int64_t vocab, int64_t hidden, const Build& b)
      : Module(std::move(name)), tp_(b.tp()), vocab_(vocab), rows_(padded_vocab(vocab, b.tp_size()) / b.tp_size()),
        weight(param("weight", {vocab, hidden}, ShardSpec::replicate(), {Init::Kind::kNormal, b.init_std}, b)) {
    weight.shard = ShardSpec::split(0);
    weight.pad_rows = rows_ * b.tp_size();
    weight.local_shape = {rows_, hidden};
  }
  Var lookup(Tape& t, Tensor tokens) { return ops::vocab_embedding(t, tokens, weight, rows_ * tp_.rank(), tp_); }
  Var loss(Tape& t, Var x, const MicroBatch& mb, int64_t chunk) {
    return ops::head_cross_entropy(t, ops::copy_to_group(t, x, tp_), weight, mb, vocab_, chunk, tp_);
  }

 private:
  ProcessGroup& tp_;
  int64_t vocab_, rows_;

 public:
  Parameter& weight;
};

class PositionTable : public Module {
 public:
  PositionTable(std::string name, int64_t positions, int64_t hidden, const Build& b)
      : Module(std::move(name)),
        weight_(param("weight", {positions, hidden}, ShardSpec::replicate(), {Init::Kind::kNormal, b.init_std}, b)) {}
  Var operator()(Tape& t, Var x, int64_t seq) { return ops::add_position(t, x, weight_, seq); }

 private:
  Parameter& weight_;
};

}  // namespace gt
