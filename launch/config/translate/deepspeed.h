// --deepspeed_config: translates a DeepSpeed file into settings of our keys, with a report per key and all problems at
// once. deepspeed_keys.h lists the keys. load_config merges the settings (defaults < --config < this file < flags).
#pragma once
#include <string>
#include <vector>

#include "launch/config/config.h"
#include "launch/config/translate/deepspeed_file.h"

namespace gt {

// Setting of one of our keys, and its origin in the DeepSpeed file.
struct DsSetting {
  std::string key;                 // "precision.amp"
  std::vector<std::string> words;  // as in command-line syntax
  std::string origin;              // "ds.json:14:5: fp16.enabled ->", used by error messages
};

struct DsConfig {
  std::string name;  // file name; "" if none was given
  std::vector<DsSetting> settings;
  // Keys or sections ("schedule.") fully determined by a block of the file; --config's values for them are dropped.
  std::vector<std::string> replaced;
  std::vector<std::string> left;    // exceptions, left to --config by "auto"
  std::vector<std::string> report;  // one line each: "optimizer.type Adam -> optim.type adamw (...)"
  std::string prefetch_origin;      // of prefetch_numel, as DsSetting::origin
  int64_t prefetch_numel = -1;      // ZeRO-3 prefetch in elements; -1: not given
  int64_t vocabulary = 0;           // vocabulary_size, for comparison only; 0: not given
  bool has_scheduler = false, has_optimizer = false, has_precision = false, has_clipping = false;

  bool determines(const std::string& key) const;  // `replaced` holds it, `left` does not
};

// Translates the values that read_deepspeed returned.
DsConfig translate_deepspeed(const DsFile& file, Problems& problems);

// Applies settings that depend on the whole config, such as layer sizes, after the flags. `origin`:
// LoadedConfig::origin.
void finish_deepspeed(const DsConfig& ds, Config& config, std::map<std::string, std::string>& origin,
                      std::vector<std::string>& notes);

// Returns whether `origin` was written by a DsSetting.
bool from_deepspeed(const std::string& origin);

}  // namespace gt
