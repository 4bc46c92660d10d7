// Aliases of config flags: short forms and Megatron-LM's names.
#pragma once
#include <string>
#include <vector>

namespace gt {

struct Alias {
  const char* flag;             // without the dashes
  const char* key;              // "parallel.tp"
  const char* value = nullptr;  // value implied by a flag that takes no argument
  bool note = true;             // listed in the start banner
};

const Alias* find_alias(const std::string& flag);  // nullptr: not an alias
// Aliases of the keys that match `patterns` (admits in config.h), and their --help lines.
std::vector<std::string> alias_names(const std::vector<std::string>& patterns = {});
std::string alias_help(const std::vector<std::string>& patterns = {});

}  // namespace gt
