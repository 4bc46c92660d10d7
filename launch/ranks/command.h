// A parsed command line.
#pragma once
#include <any>
#include <string>
#include <vector>

#include "kernels/core/check.h"
#include "launch/ranks/ranks.h"

namespace gt {

// `loaded` is the job's config for train, lr, bench and verify. For eval and generate it has defaults, because the
// checkpoint determines the model: use checkpoint_config() (launch/tools/weights/checkpoint_config.h). Their flags
// have been checked against Subcommand::keys and their domains.
struct Command : JobRequest {
  Exit (*run)(const Command&) = nullptr;  // nullptr: print `text` and exit with 0 (--help, --version, no arguments)
  std::string text;
  std::any args;                          // of the subcommand's type
  std::string config_file;                // --config
  std::vector<std::string> config_flags;  // unparsed

  template <class T>
  const T& get() const {
    return std::any_cast<const T&>(args);
  }
};

}  // namespace gt
