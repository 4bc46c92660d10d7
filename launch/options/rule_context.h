// What the rules of one section are told beside the config, and where they report.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace gt {

struct RuleContext {
  std::function<std::string(const std::string&)> where;  // a key was set: "configs/x.json:14", "--optim.lr", ""
  std::function<bool(const char*)> known;                // the key could be read
  std::function<void(const std::string& key, std::string reason, std::string fix)> bad;
  std::vector<std::string>& notes;
};

}  // namespace gt
