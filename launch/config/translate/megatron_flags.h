// Megatron-LM's command line for GPT (pretrain_gpt.py): what each flag becomes here. Flags that are one of our keys
// under another name, with the same values, are in config_alias.h; this table holds the rest. Reference: Megatron-LM
// core 0.13, megatron/training/arguments.py.
#pragma once
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launch/options/options.h"

namespace gt {

enum class MegatronStatus {
  kTranslated,  // becomes one or several of our flags
  kSame,        // what it asks for is always so here
  kNoEffect,    // concerns machinery that does not exist here, and changes no result
  kRefused,     // an error: training would be something else without it
};

struct MegatronFlag {
  std::string_view name;  // without the dashes
  MegatronStatus status;
  int values = 0;             // words that follow it; -1: any number
  std::string_view why = {};  // what it becomes; why it has no effect; why it is refused and what to do
  // Of kSame: values that ask for what there is here, separated by "|"; others are refused. Of kTranslated without a
  // rule of its own: our flags, whose last value is the flag's where `values` is 1.
  std::string_view accepts = {};
};

std::span<const MegatronFlag> megatron_flags();
std::vector<std::string> megatron_flag_names();
std::string megatron_help();  // lines for --help: what is translated, and what is taken without effect

struct MegatronReport {
  std::vector<std::string> lines;              // one a flag: translated, always so here, no effect
  std::map<std::string, std::string> spelled;  // "--checkpoint.load_from" -> "--load", which became it
};

// Takes the table's flags off `words` and appends ours in their place, so that parsing goes on with one language.
// Refused ones go to `problems`. Flags of config_alias.h stay; a line of the report names defaults of Megatron that
// differ from ours where the command line is one of Megatron's and leaves them open.
MegatronReport take_megatron_flags(std::vector<std::string>& words, Problems& problems);

}  // namespace gt
