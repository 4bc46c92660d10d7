// The rules between options: what does not fit together, what is not built yet, and what follows from what. Every
// violated rule is a Problem with the nearest legal values; nothing stops at the first.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "launch/config/config.h"

namespace gt {

struct CheckContext {
  const std::map<std::string, std::string>& origin;  // key -> where it was set
  int external_world = 0;
  bool needs_data = false;
  bool deepspeed = false;         // a DeepSpeed file was read: the batch follows its rules
  std::string world_source = {};  // who told external_world
};

// Fills in dp, ffn, kv_heads and the batch numbers, and checks everything. `notes` gets one line for each value that is
// not plainly a default ("dp 2 = 8 ranks / (tp 2 x pp 2)").
void resolve_and_check(Config& config, const CheckContext& context, Problems& problems,
                       std::vector<std::string>& notes);

// Values that the parser knows and this version cannot do yet: the only place that says so.
struct NotBuilt {
  const char* key;
  const char* working;  // "1f1b|gpipe": values that are built
  const char* what;     // what the others would be
};
const std::vector<NotBuilt>& not_built();

// Whether a source of data.train is a file of text (or JSON lines) and not of tokens.
bool names_text(const std::string& path);

}  // namespace gt
