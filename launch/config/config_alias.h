// Aliases of config flags: short forms and Megatron-LM's names; names in other trainers that are recognized only.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <utility>
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

// Returns the key that another trainer calls so, for suggestions: "n_embd" → "model.hidden"; "": none. Hyphens and
// underscores are alike.
std::string key_elsewhere(std::string_view name);
std::span<const std::pair<std::string_view, std::string_view>> names_elsewhere();  // those that are no alias

}  // namespace gt
