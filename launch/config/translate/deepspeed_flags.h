// The flags that DeepSpeed's users and launchers put on a command line, taken off it before anything else reads it.
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

// --deepspeed_config FILE|-|base64:TEXT, --allow_unknown_keys, --deepspeed (accepted, means nothing),
// --local_rank N and --local-rank=N (held against what the launcher says). --deepscale* is refused. -H, -i, -e
// and --dry_run become --hostfile, --include, --exclude and --dry-run. Flags of DeepSpeed's launcher that have no
// counterpart here are refused, or said to have no effect where nothing is lost.
DsFlags take_deepspeed_flags(std::vector<std::string>& words, const RankEnv& env, Problems& problems);

// "--deepspeed_config -" becomes "stdin:TEXT" in every list of words, because ranks have no standard input. Throws
// kUsage when the text is too long for a command line.
void inline_standard_input(DsFlags& flags, std::vector<std::string>& words);

std::string deepspeed_help();  // lines for --help
std::vector<std::string> deepspeed_flag_names();

}  // namespace gt
