// Model config of a checkpoint from its config.json, which is untrusted input. Only model settings are read from it,
// never a path, a host or launcher arguments. It is checked against the tensors before allocation. Used by all
// subcommands that load a checkpoint.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/step_reader.h"
#include "launch/config/config.h"

namespace gt {

// Returns the config of the checkpoint's model: model.*, precision.*, train.{micro_batch,global_batch,seed} and
// data.{split,order,pack,eod_mask_loss,no_bos} of its config.json, overridden by `flags`; everything else is at its
// default. Throws kUsage if config.json is missing or `flags` are invalid; kDamaged if config.json violates a rule, or
// one of its weights is missing or has another shape.
Config checkpoint_config(const StepReader& step, const std::vector<std::string>& flags);

// Same with all fields of a ConfigSource except the file, such as the world size of an external launcher.
LoadedConfig load_checkpoint_config(const StepReader& step, ConfigSource source);

// Returns the stored tensor of a weight such as "layers.0.norm1.bias": its FP32 master, else its low-precision value;
// nullptr if neither exists.
const TensorEntry* stored_weight(const StepReader& step, const std::string& native);

// Returns `flags` with a data source: the user's --data.train or --data.valid, or mock data if the run used it. Paths
// recorded in config.json are not opened: throws kUsage with the command line `words`, completed by such a path, for
// copying.
std::vector<std::string> flags_with_data(const StepReader& step, const std::vector<std::string>& flags,
                                         const std::vector<std::string>& words);

}  // namespace gt
