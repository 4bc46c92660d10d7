// Parameter groups: what an optimizer does otherwise for some parameters, like the param_groups of torch.optim.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "parallel/zero/param_store.h"

namespace gt {

struct ParamGroup {
  std::string match;                          // regular expression, searched in the logical name of a parameter
  double lr_scale = 1;                        // of the schedule's learning rate
  std::optional<float> weight_decay;          // of all of them; nullopt: the optimizer's, where Parameter::decay
  std::optional<std::array<float, 2>> betas;  // nullopt: the optimizer's; a schedule that moves them goes first
};

// By store.tensors(): k + 1 where groups[k] is the first that matches the name (the owner's, of a tied copy), else 0.
std::vector<int> groups_of_tensors(const std::vector<ParamGroup>& groups, const ParamStore&);

}  // namespace gt
