// adapter_config.json of PEFT. It may come from anyone: what would make PEFT compute something else is refused by name.
#pragma once
#include <string>
#include <vector>

#include "launch/config/config.h"

namespace gt {

struct PeftConfig {
  LoraConfig lora;                   // rank, alpha (that of use_rslora too), dropout
  std::string base;                  // base_model_name_or_path
  std::vector<std::string> targets;  // target_modules, if it is a list
  // Returns whether PEFT adapts this module, "model.layers.0.self_attn.q_proj".
  bool adapts(const std::string& module) const;
};

// Throws kDamaged listing all problems: settings that are not built and settings that are not known, unless they are
// null, false or empty. `where`: the file, for messages.
PeftConfig parse_peft_config(const std::string& text, const std::string& where);

}  // namespace gt
