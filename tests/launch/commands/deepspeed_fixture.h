// Loads DeepSpeed files from text, for tests of their translation.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/hash/base64.h"
#include "launch/config/config.h"
#include "launch/tools/translate/deepspeed.h"

namespace gt {

struct DsInput {
  std::string json;
  std::vector<std::string> flags = {};
  std::string file = {};  // --config
  int world = 0;
  bool allow_unknown = false;
};

inline LoadedConfig load_deepspeed(const DsInput& l) {
  return load_config({.file = l.file,
                      .flags = l.flags,
                      .external_world = l.world,
                      .foreign = deepspeed_reader("base64:" + encode_base64(l.json), l.allow_unknown),
                      .world_source = l.world > 0 ? "OMPI_COMM_WORLD_RANK" : ""});
}

// Returns the list of problems, or "accepted".
inline std::string deepspeed_problems(const DsInput& l) {
  try {
    load_deepspeed(l);
  } catch (const Error& e) { return e.code() == Exit::kUsage ? e.what() : cat("wrong exit code: ", e.what()); }
  return "accepted";
}

inline std::string joined_notes(const LoadedConfig& c) {
  std::string out;
  for (const std::string& n : c.notes) out += n + "\n";
  return out;
}

inline std::string value_of(Config c, const std::string& key) {
  for (const Option& o : list_options(c))
    if (o.key() == key) return value_text(o);
  return "no such key";
}

}  // namespace gt
