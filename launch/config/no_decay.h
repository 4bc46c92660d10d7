// Parameter groups: parameters excluded from weight decay besides those of fewer than two dimensions.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel/zero/param_store.h"

namespace gt {

// Clears weight decay of parameters whose logical name (the owner's, for a tied copy) matches one of the regular
// expressions. Returns the number of local matches of each expression.
std::vector<int64_t> mark_no_decay(std::span<const ScopeSpec> scopes, const std::vector<std::string>& patterns);

}  // namespace gt
