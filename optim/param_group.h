// Which parameters belong to which parameter group.
#pragma once
#include <vector>

#include "optim/optimizer_options.h"
#include "parallel/zero/param_store.h"

namespace gt {

// Returns, by index in store.tensors(), k + 1 for the first groups[k] that matches the name (for a tied copy, the
// owner's), else 0.
std::vector<int> groups_of_tensors(const std::vector<ParamGroup>& groups, const ParamStore&);

}  // namespace gt
