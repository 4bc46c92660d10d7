// Cross-option rules: inconsistencies, unimplemented values and derived defaults. Each violation is reported as a
// Problem with the nearest legal values; checking continues after the first.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "launch/config/config.h"

namespace gt {

struct CheckContext {
  const std::map<std::string, std::string>& origin;  // key → where it was set
  int external_world = 0;
  bool needs_data = false;
  bool deepspeed = false;         // a DeepSpeed file was read: its batch rules apply
  std::string world_source = {};  // launcher variable that set external_world
  std::string model_folder = {};  // of the weights that the run starts from; "": they are random
};

// Derives dp, ffn, kv_heads and the batch sizes, and checks everything. Adds a line to `notes` for each derived value
// ("dp 2 = 8 ranks / (tp 2 x pp 2)").
void resolve_and_check(Config& config, const CheckContext& context, Problems& problems,
                       std::vector<std::string>& notes);

// Value that the parser accepts but this version does not implement. This is the only table of them.
struct Unimplemented {
  const char* key;
  const char* working;  // implemented values: "1f1b|gpipe"
  const char* what;     // feature that the other values select
};
const std::vector<Unimplemented>& unimplemented_values();
// Returns false if this version implements a single value of the option. Otherwise restricts its domain to those that
// it implements. For --help, which offers nothing else.
bool restrict_to_implemented(Option&);

// Returns whether a data.train source is a text or JSON-lines file rather than a token file.
bool is_text_source(const std::string& path);

}  // namespace gt
