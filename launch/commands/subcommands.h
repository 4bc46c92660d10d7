// Subcommand table. Each subcommand is a row and a function: of this folder in a file of its name; of a tool declared
// in launch/tools/TOOL/subcommands.h.
#pragma once
#include <any>
#include <string>
#include <vector>

#include "kernels/core/check.h"
#include "launch/options/options.h"
#include "launch/ranks/command.h"

namespace gt {

// Config flags that a subcommand takes. kLater: collected unchecked, and checked when the config is loaded.
enum class ConfigFlags : uint8_t { kNone, kNow, kLater };

struct Subcommand {
  const char* name;     // "tokenizer train"
  const char* meaning;  // for --help
  const char* example;  // arguments after "gpttrain NAME"
  Exit (*run)(const Command&);
  // Constructs the subcommand's arguments in `args` and returns options that point into it.
  std::vector<Option> (*bind)(std::any& args);
  ConfigFlags config = ConfigFlags::kNone;
  const char* plain = nullptr;             // option that takes a positional argument
  bool needs_data = false;                 // data.train is mandatory
  std::vector<std::string> keys = {};      // patterns of the accepted config keys (admits()); empty: all
  std::vector<std::string> own_keys = {};  // config keys that --help lists with the subcommand's own flags
};
const std::vector<Subcommand>& subcommands();  // in --help order; the first is the default

// Each returns the exit code or throws gt::Error, which main prints.
Exit run_train(const Command&);
Exit run_check(const Command&);
Exit run_schedule(const Command&);
Exit run_lr(const Command&);
Exit run_tokenizer_train(const Command&);
Exit run_tokenizer_encode(const Command&);
Exit run_tokenizer_decode(const Command&);
Exit run_data_prepare(const Command&);
Exit run_data_inspect(const Command&);
Exit run_ckpt_ls(const Command&);
Exit run_ckpt_inspect(const Command&);
Exit run_ckpt_verify(const Command&);
Exit run_ckpt_diff(const Command&);
Exit run_ckpt_prune(const Command&);
Exit run_completion(const Command&);
Exit run_man(const Command&);

}  // namespace gt
