// The two heads of a masked language model (Devlin et al. 2018, arXiv 1810.04805): a transform in front of the
// vocabulary table with its bias, and the classification of sentence pairs from each sequence's first token. Their
// weights but the table and its bias are whole on every TP rank.
#pragma once
#include "model/layers/embedding.h"
#include "model/layers/linear.h"
#include "model/layers/norm.h"

namespace gt {

// A linear layer that TP ranks do not share: y = x W^T + b of the rows that the rank holds.
class WholeLinear : public Linear {
 public:
  WholeLinear(std::string name, const Build& b) : Linear(std::move(name), b, false, false) {}
  Var operator()(Tape& t, Var x) {
    return multiply(t, {ops::cast(t, ops::fake_quant(t, x, input_), weight.dtype)}, bias, {}, ops::Keep::kOutputs);
  }
};

// Bias of the logits, of this rank's vocabulary rows.
class VocabBias : public Module {
 public:
  VocabBias(std::string name, const Build& b) : Module(std::move(name)), bias(param("bias", b)) {}
  Parameter& bias;
};

// Transform before the vocabulary table, norm(act(dense(x))), and the bias added to the logits.
class MaskedLmTransform : public Module {
 public:
  MaskedLmTransform(std::string name, const Build& b)
      : Module(name),
        kind_(b.config().activation),
        dense_(name + ".dense", b),
        norm_(name + ".norm", b),
        decoder_(name + ".decoder", b) {
    child(dense_);
    child(norm_);
    child(decoder_);
  }
  Var operator()(Tape& t, Var x) { return norm_(t, ops::activate(t, dense_(t, x), kind_, false).out, nullptr).out; }
  Parameter& bias() { return decoder_.bias; }

 private:
  const Activation kind_;
  WholeLinear dense_;
  Norm norm_;
  VocabBias decoder_;
};

// Whether the second sentence of a pair follows the first: classes(tanh(pooler(first token))). Every TP rank computes
// it whole.
class PairHead : public Module {
 public:
  PairHead(std::string name, const Build& b)
      : Module(name), axis_(b.tensor()), pooler_(name + ".pooler", whole(b)), classes_(name + ".classes", whole(b)) {
    child(pooler_);
    child(classes_);
  }
  // Logits [batch, 2]; x as first_tokens takes it.
  Var operator()(Tape& t, Var x, const MicroBatch& mb) {
    const Var first = ops::first_tokens(t, x, mb, axis_);
    return classes_(t, ops::activate(t, pooler_(t, first), Activation::kTanh, false).out);
  }

 private:
  static Build whole(Build b) {
    b.sequence_parallel = false;
    return b;
  }
  TensorAxis axis_;
  WholeLinear pooler_, classes_;
};

}  // namespace gt
