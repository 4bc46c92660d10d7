// Command-line parsing: subcommand, its own flags, and the config flags that it accepts. Parsing and checking only; the
// table in subcommands.h names what runs.
#pragma once
#include <string>
#include <vector>

#include "launch/ranks/command.h"

namespace gt {

// Throws one kUsage error that lists every problem of the command line, the config file and their combination.
Command parse_command(int argc, const char* const* argv);
Command parse_command(const std::vector<std::string>& words, const RankEnv& env);

}  // namespace gt
