// Megatron-LM's GPT command line (pretrain_gpt.py): treatment of each flag. Flags that are one of our keys under
// another name, with the same values, are in config_alias.h. Reference: Megatron-LM core 0.16.1,
// megatron/training/arguments.py and training_config.py.
#pragma once
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launch/config/config.h"
#include "launch/options/options.h"

namespace gt {

enum class MegatronStatus {
  kTranslated,  // mapped to one or several of our flags, or part of such a translation
  kAlways,      // always the case here
  kNoEffect,    // concerns machinery absent here; no effect on results
  kRefused,     // an error: ignoring it would change training
};

struct MegatronFlag {
  std::string_view name;  // without the dashes
  MegatronStatus status;
  int values = 0;             // number of arguments; -1: any
  std::string_view why = {};  // translation, or reason for no effect or rejection with an alternative
  // kAlways: accepted values, separated by "|"; others are rejected. kTranslated without a rule of its own: our flags;
  // if `values` is 1, the last one takes the argument.
  std::string_view accepts = {};
};

std::span<const MegatronFlag> megatron_flags();
std::vector<std::string> megatron_flag_names();
std::string megatron_help();  // --help text: translated flags, then accepted flags without effect

struct MegatronReport {
  std::vector<std::string> lines;  // one per flag: translated, always the case, no effect
  // our flag → Megatron flag it came from: "--checkpoint.load_from" → "--load"
  std::map<std::string, std::string> spelled;
  std::vector<AbsentSetting> absent;  // values of flags that the line leaves out (megatron_defaults.h)
};

// Removes the table's flags from `words` and appends their translations, so that later parsing sees only our flags.
// Rejected flags are added to `problems`; flags of config_alias.h stay.
// If the command line is Megatron's, so are its vocabulary and the values of the flags that it leaves out.
// `own`: names of the subcommand's own flags, which stay.
MegatronReport consume_megatron_flags(std::vector<std::string>& words, std::span<const std::string> own,
                                      Problems& problems);

}  // namespace gt
