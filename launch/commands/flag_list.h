// Flags of the subcommands as text, for the manual page and the completion of shells.
#pragma once
#include <string>
#include <vector>

#include "launch/commands/subcommands.h"

namespace gt {

struct ListedFlag {
  std::string name;                 // without dashes
  std::string value;                // as in --help: "a|b|c", "<int 1..64>"
  std::string meaning;              // ends with the default in brackets where there is one
  std::vector<std::string> values;  // legal values, where they are words
  bool boolean = false;             // the value may be left out
  std::string section = {};         // of a setting; "" for a flag of a subcommand
};

// Flags of its own, without settings.
std::vector<ListedFlag> own_flags(const Subcommand&);
// Settings of the configuration that the subcommand takes; values that are not built are left out.
std::vector<ListedFlag> setting_flags(const Subcommand&);
// Short forms of those settings.
std::vector<ListedFlag> alias_flags(const Subcommand&);

}  // namespace gt
