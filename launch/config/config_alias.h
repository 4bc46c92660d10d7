// Other spellings of config flags: short ones, and those of Megatron-LM's command line.
#pragma once
#include <string>
#include <vector>

namespace gt {

struct Alias {
  const char* flag;             // without the dashes
  const char* key;              // "parallel.tp"
  const char* value = nullptr;  // a flag without argument that means this value
  bool note = true;             // worth a line in the start banner
};

const Alias* find_alias(const std::string& flag);  // nullptr: not an alias
// Of keys that match `patterns` (admits in config.h), and their lines for --help.
std::vector<std::string> alias_names(const std::vector<std::string>& patterns = {});
std::string alias_help(const std::vector<std::string>& patterns = {});

}  // namespace gt
