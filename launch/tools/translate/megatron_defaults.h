// Values that Megatron-LM's flags have when they are absent (core 0.16.1: training_config.py, transformer_config.py and
// arguments.py of megatron/training and megatron/core). Layout, paths, logs and saves keep our defaults.
#pragma once
#include <string>
#include <vector>

#include "launch/config/config.h"
#include "launch/tools/translate/megatron_line.h"

namespace gt {

// Model family whose architecture the flags describe: llama, mistral, qwen2 or qwen3 with rotary positions, RMSNorm,
// SwiGLU and no biases of linear layers; else gpt2.
std::string megatron_family(const MegatronLine& line);

// Settings for keys that the line leaves open; empty unless line.whole().
std::vector<AbsentSetting> megatron_defaults(const MegatronLine& line);

}  // namespace gt
