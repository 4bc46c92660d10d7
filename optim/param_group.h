// Parameter groups: per-parameter overrides of optimizer settings, like param_groups of torch.optim.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "parallel/zero/param_store.h"

namespace gt {

struct ParamGroup {
  std::string match;                  // regular expression, searched in the logical parameter name
  std::string rule;                   // optimizer_names(); empty: OptimizerOptions::type
  double lr_scale = 1;                // factor of the schedule's learning rate
  std::optional<float> weight_decay;  // for all matching parameters; nullopt: the optimizer's, where Parameter::decay
  std::optional<std::array<float, 2>> betas;  // nullopt: the optimizer's; a schedule that varies them takes precedence
};

// Returns, by index in store.tensors(), k + 1 for the first groups[k] that matches the name (for a tied copy, the
// owner's), else 0.
std::vector<int> groups_of_tensors(const std::vector<ParamGroup>& groups, const ParamStore&);

}  // namespace gt
