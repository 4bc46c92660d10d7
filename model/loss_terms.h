// Losses by name: the terms of a training objective, each weight * sum / divisor. ModelSpec lists them; gradients,
// records, checks, logs and evaluations are driven by that list, by index.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gt {

// Count over the global batch by which the sum of a loss is divided to its mean; equal on every layout.
enum class LossDivisor : uint8_t {
  kTargets,    // targets that carry loss
  kTokens,     // tokens of all sequences
  kSequences,  // sequences; of sentence pairs their pairs
};

struct LossCounts {
  int64_t targets = 0, tokens = 0, sequences = 0;
  int64_t of(LossDivisor d) const {
    return d == LossDivisor::kTargets ? targets : d == LossDivisor::kTokens ? tokens : sequences;
  }
  LossCounts& operator+=(const LossCounts& o) {
    targets += o.targets, tokens += o.tokens, sequences += o.sequences;
    return *this;
  }
};

constexpr size_t kMostLosses = 8;  // of a model: records of a step have a fixed size

struct LossTerm {
  std::string name;
  double weight = 1;
  LossDivisor divisor = LossDivisor::kTargets;
  bool hits = false;  // evaluation also counts the targets with the largest logit
  // Indices in ModelSpec::layers, ascending. Each of these layers computes one sum, so that every sum of a microbatch
  // has one writer and the objective does not depend on the pipeline layout.
  std::vector<int> layers = {};
  std::string key() const { return name + "_loss"; }
  friend bool operator==(const LossTerm&, const LossTerm&) = default;
};

// A sum that a microbatch records: that of one layer of a term.
struct LossSum {
  int term = 0, layer = 0;
};

}  // namespace gt
