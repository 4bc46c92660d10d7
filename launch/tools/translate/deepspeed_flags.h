// Flags of DeepSpeed's scripts and launchers, removed from the command line before other parsing.
#pragma once
#include <string>
#include <vector>

#include "launch/hosts/rank_env.h"
#include "launch/options/options.h"

namespace gt {

struct DsFlags {
  std::string config;  // --deepspeed_config, as ConfigSource::deepspeed
  bool allow_unknown_keys = false;
  std::vector<std::string> notes = {};  // flags without effect
};

// Handles --deepspeed_config FILE|-|base64:TEXT, --allow_unknown_keys, --deepspeed (no effect), and --local_rank N or
// --local-rank=N (checked against the launcher's). Rejects --deepscale*.
// Renames -H, -i, -e and --dry_run to --hostfile, --include, --exclude and --dry-run. Flags of DeepSpeed's launcher
// without a counterpart are rejected, or reported as having no effect if they are harmless.
DsFlags consume_deepspeed_flags(std::vector<std::string>& words, const RankEnv& env, Problems& problems);

// Replaces "--deepspeed_config -" by "stdin:TEXT" in every argument list, because ranks have no standard input. Throws
// kUsage if the text exceeds the length of an argument.
void inline_standard_input(DsFlags& flags, std::vector<std::string>& words);

std::string deepspeed_help();  // lines for --help
std::vector<std::string> deepspeed_flag_names();

}  // namespace gt
