// Parameter groups: which parameters get no weight decay beside those of fewer than two dimensions.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel/zero/param_store.h"

namespace gt {

// Takes the decay from parameters whose logical name (the owner's, for a tied copy) one of the regular expressions
// finds. Returns how many names each of them found here.
std::vector<int64_t> mark_no_decay(std::span<const ScopeSpec> scopes, const std::vector<std::string>& patterns);

}  // namespace gt
