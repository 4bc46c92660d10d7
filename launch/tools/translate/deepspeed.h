// --deepspeed_config: translates a DeepSpeed file into settings of our keys, with a report per key and all problems at
// once. deepspeed_keys.h lists the keys. load_config merges the settings (defaults < --config < this file < flags).
#pragma once
#include <string>
#include <vector>

#include "launch/config/config.h"
#include "launch/tools/translate/deepspeed_file.h"

namespace gt {

struct DsConfig : ForeignConfig {
  std::string prefetch_origin;  // of prefetch_numel, as ForeignSetting::origin
  int64_t prefetch_numel = -1;  // ZeRO-3 prefetch in elements; -1: not given
  int64_t vocabulary = 0;       // vocabulary_size, for comparison only; 0: not given
  bool has_scheduler = false, has_optimizer = false, has_precision = false, has_clipping = false;
};

// Translates the values that read_deepspeed returned.
DsConfig translate_deepspeed(const DsFile& file, Problems& problems);

// For ConfigSource::foreign. `source`: of --deepspeed_config, as read_deepspeed_text takes it. `allow_unknown_keys`:
// they are ignored with a note. An empty `source`: no file.
ForeignReader deepspeed_reader(const std::string& source, bool allow_unknown_keys = false);

// For ConfigSource::names.
extern const ForeignNames kDeepspeedNames;

}  // namespace gt
