// Which parameters belong to which parameter group.
#pragma once
#include <string>
#include <vector>

#include "optim/optimizer_options.h"
#include "parallel/zero/param_store.h"

namespace gt {

// Returns for each name k + 1 of the first groups[k] that matches it, else 0.
std::vector<int> groups_of_names(const std::vector<ParamGroup>& groups, const std::vector<std::string>& names);

// The same by index in store.tensors(); a tied copy has its owner's name.
std::vector<int> groups_of_tensors(const std::vector<ParamGroup>& groups, const ParamStore&);

}  // namespace gt
