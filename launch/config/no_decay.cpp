#include "launch/config/no_decay.h"

#include <regex>

namespace gt {

std::vector<int64_t> mark_no_decay(std::span<const ScopeSpec> scopes, const std::vector<std::string>& patterns) {
  std::vector<int64_t> found(patterns.size(), 0);
  for (size_t i = 0; i < patterns.size(); ++i) {
    const std::regex pattern(patterns[i]);
    for (const ScopeSpec& s : scopes)
      for (Parameter* p : s.params) {
        if (!std::regex_search(p->tied_to.empty() ? p->name : p->tied_to, pattern)) continue;
        p->decay = false;
        ++found[i];
      }
  }
  return found;
}

}  // namespace gt
