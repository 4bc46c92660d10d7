// --deepspeed_config: a DeepSpeed user's file becomes settings of our own keys, with a report of what became of each of
// its keys and every problem at once. What keys there are is the table in deepspeed_keys.h; how the settings join
// --config and flags is load_config's business (defaults < --config < this file < flags).
#pragma once
#include <string>
#include <vector>

#include "launch/config/config.h"
#include "launch/config/translate/deepspeed_file.h"

namespace gt {

// One of our keys, and who asked for it.
struct DsSetting {
  std::string key;                 // "precision.amp"
  std::vector<std::string> words;  // as on a command line
  std::string origin;              // "ds.json:14:5: fp16.enabled ->", where errors about it point to
};

struct DsConfig {
  std::string name;  // of the file, "" when none was given
  std::vector<DsSetting> settings;
  // Keys of ours that a block of the file speaks for whole: what --config says of them is set aside.
  std::vector<std::string> replaced;  // "schedule." is the whole section
  std::vector<std::string> left;      // but not these, which the file leaves to it by "auto"
  std::vector<std::string> report;    // "optimizer.type Adam -> optim.type adamw (...)", a line each
  std::string prefetch_origin;        // of prefetch_numel, as in DsSetting
  int64_t prefetch_numel = -1;        // elements that ZeRO 3 gathers ahead; -1: not given
  int64_t vocabulary = 0;             // vocabulary_size, only compared; 0: not given
  bool has_scheduler = false, has_optimizer = false, has_precision = false, has_clipping = false;
};

// Translates what read_deepspeed found.
DsConfig translate_deepspeed(const DsFile& file, Problems& problems);

// After flags: what needs the whole config, such as sizes of layers. `origin` as in LoadedConfig.
void finish_deepspeed(const DsConfig& ds, Config& config, std::map<std::string, std::string>& origin,
                      std::vector<std::string>& notes);

// True for an origin that a DsSetting wrote.
bool from_deepspeed(const std::string& origin);

}  // namespace gt
