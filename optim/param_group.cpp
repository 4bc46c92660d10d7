#include "optim/param_group.h"

#include <algorithm>
#include <regex>

namespace gt {

std::vector<int> groups_of_names(const std::vector<ParamGroup>& groups, const std::vector<std::string>& names) {
  std::vector<std::regex> patterns;
  for (const ParamGroup& g : groups) patterns.emplace_back(g.match);
  std::vector<int> out;
  for (const std::string& name : names) {
    const auto found = std::find_if(patterns.begin(), patterns.end(),
                                    [&](const std::regex& pattern) { return std::regex_search(name, pattern); });
    out.push_back(found == patterns.end() ? 0 : static_cast<int>(found - patterns.begin()) + 1);
  }
  return out;
}

std::vector<int> groups_of_tensors(const std::vector<ParamGroup>& groups, const ParamStore& store) {
  std::vector<std::string> names;
  for (const Parameter* p : store.tensors()) names.push_back(p->tied_to.empty() ? p->name : p->tied_to);
  return groups_of_names(groups, names);
}

}  // namespace gt
