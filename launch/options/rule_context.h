// Inputs and outputs of the rules of one config section, besides the config itself.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace gt {

struct RuleContext {
  std::function<std::string(const std::string&)> where;  // where a key was set: "configs/x.json:14"; "" if unset
  std::function<bool(const char*)> known;                // whether the key's value could be parsed
  std::function<void(const std::string& key, std::string reason, std::string fix)> bad;
  std::vector<std::string>& notes;
};

}  // namespace gt
