// The table of optimizers, one row each. Everything that depends on an optimizer's name reads it: make_optimizer, the
// config (domain, help, defaults, keys of other optimizers), the planner, comparisons of state, and the translators of
// DeepSpeed's and Megatron-LM's options.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops.h"
#include "optim/flat_state.h"
#include "optim/optimizer.h"

namespace gt {

// An option of section `optim` and a value as value_text() writes it.
struct OptionText {
  std::string_view key, text;
};

// The optimizer in DeepSpeed's configuration.
struct DeepSpeedOptimizer {
  // A parameter, the option of section `optim` with the same values, and DeepSpeed's default ("a,b": a pair; empty:
  // the translator has a rule of its own).
  struct Param {
    std::string_view name, key, standard;
  };
  std::string_view name;  // optimizer.type, read in any case; empty: DeepSpeed has no such optimizer
  std::vector<Param> params;
  std::vector<OptionText> implied;  // options that the name sets
  std::string_view comment;         // of its line in the report
};

// One call of a flat rule's op: over a table, with its row of scalars.
struct FlatStep {
  const OpTable& ops;
  const OptimizerOptions& options;
  const SegmentTable& table;
  Tensor scalars;
  Stream stream;
};

struct OptimizerRule {
  std::string_view name;
  std::string_view keys;  // options of section `optim` that not every optimizer reads, "betas|eps"
  bool decoupled = true;  // weight decay; false: added to the gradient
  std::vector<Moment> moments;
  bool (*keeps_moments)(const OptimizerOptions&) = nullptr;  // nullptr: always
  std::vector<OptionText> defaults;                          // where they differ from the options' own
  std::unique_ptr<Optimizer> (*make)(const OptimizerOptions&, const ParamStore&, const Mesh&, const Backend&,
                                     Stream) = nullptr;
  // Of make_flat: calls the op, and fills the scalars as Optimizer::fill_scalars does.
  void (*step)(const FlatStep&) = nullptr;
  void (*fill)(const OptimizerOptions&, int64_t t, const LrPoint&, float* scalars) = nullptr;
  std::string_view others;                 // rule of parameters that are no weights of linear layers; empty: this one
  int64_t scalar_rows = 1;                 // per parameter group
  std::vector<std::string_view> megatron;  // values of Megatron-LM's --optimizer
  DeepSpeedOptimizer deepspeed;

  bool reads(std::string_view key) const;  // whether `keys` lists it
  std::vector<Moment> kept(const OptimizerOptions&) const;
  int64_t state_bytes(const OptimizerOptions&) const;  // of all moments, per updated element
};

// In the order in which the rules of a run have their rows of scalars.
const std::vector<OptimizerRule>& optimizer_rules();

// Throws kUsage on an unknown name, listing the known ones.
const OptimizerRule& optimizer_rule(std::string_view name);

// Returns the rule of one parameter. group: as groups_of_tensors(); linear: whether it is the weight of a linear layer.
const OptimizerRule& rule_of(const OptimizerOptions&, int group, bool linear);

std::vector<std::string_view> optimizer_keys();  // every key of any rule, once

// Returns the names of the rules that satisfy a predicate, separated.
template <class Predicate>
std::string rule_names(Predicate applies, std::string_view separator) {
  std::string out;
  for (const OptimizerRule& r : optimizer_rules())
    if (applies(r)) out.append(out.empty() ? "" : separator).append(r.name);
  return out;
}

// Whether state "exp_avg_sq/<parameter>" holds sums of squares.
bool holds_squares(std::string_view state);

}  // namespace gt
