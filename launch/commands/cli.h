// The command line: which subcommand, its own flags, and the config flags that it takes. Parsing and checking only; running a
// subcommand is the business of launch/commands.
#pragma once
#include <any>
#include <string>
#include <vector>

#include "kernels/core/check.h"
#include "launch/commands/subcommand_args.h"
#include "launch/ranks/ranks.h"

namespace gt {

// The job's config is that of train, lr, bench and verify. eval and generate leave it at defaults, for the model is the
// checkpoint's: load that with checkpoint_config() (launch/commands/checkpoint_config.h). Their flags are known to act
// (Subcommand::keys) and to have values of their domains.
struct Command : JobRequest {
  Exit (*run)(const Command&) = nullptr;  // none: print `text` and end with code 0 (--help, --version, no arguments)
  std::string text;
  std::any args;  // of the type in subcommand_args.h
  std::string config_file;                // --config
  std::vector<std::string> config_flags;  // as given

  template <class T>
  const T& get() const {
    return std::any_cast<const T&>(args);
  }
};

// Throws one kUsage error with every problem of the command line, the config file and their combinations.
Command parse_command(int argc, const char* const* argv);
Command parse_command(const std::vector<std::string>& words, const RankEnv& env);

}  // namespace gt
