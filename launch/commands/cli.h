// Command-line parsing: subcommand, its own flags, and the config flags that it accepts. Parsing and checking only;
// launch/commands runs the subcommands.
#pragma once
#include <any>
#include <string>
#include <vector>

#include "kernels/core/check.h"
#include "launch/commands/subcommand_args.h"
#include "launch/ranks/ranks.h"

namespace gt {

// `loaded` is the job's config for train, lr, bench and verify. For eval and generate it has defaults, because the
// checkpoint determines the model: use checkpoint_config() (launch/commands/weights/checkpoint_config.h). Their flags
// have been checked against Subcommand::keys and their domains.
struct Command : JobRequest {
  Exit (*run)(const Command&) = nullptr;  // nullptr: print `text` and exit with 0 (--help, --version, no arguments)
  std::string text;
  std::any args;                          // of a type in subcommand_args.h
  std::string config_file;                // --config
  std::vector<std::string> config_flags;  // unparsed

  template <class T>
  const T& get() const {
    return std::any_cast<const T&>(args);
  }
};

// Throws one kUsage error that lists every problem of the command line, the config file and their combination.
Command parse_command(int argc, const char* const* argv);
Command parse_command(const std::vector<std::string>& words, const RankEnv& env);

}  // namespace gt
