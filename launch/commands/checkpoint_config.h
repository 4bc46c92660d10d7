// Model of a checkpoint by its config.json, a file that anybody may have written: of it, only what a model needs is
// taken, never a path, a host or a word for a launcher, and it is checked against the tensors before anything is
// allocated. Used by the subcommands that load a checkpoint.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/step_reader.h"
#include "launch/config/config.h"

namespace gt {

// Returns the config of the checkpoint's model: model.*, precision.*, train.{micro_batch,global_batch,seed} and
// data.{split,order,eod_mask_loss} of its config.json,
// then `flags`, which win; everything else is at its default. kUsage: there is no config.json, or `flags` do not fit;
// kDamaged: config.json breaks a rule, or a weight that it asks for is missing or has another shape.
Config checkpoint_config(const StepReader& step, const std::vector<std::string>& flags);

// The same with all that a source has besides a file: how many ranks an external launcher started, say.
LoadedConfig load_checkpoint_config(const StepReader& step, ConfigSource source);

// Returns the stored tensor of a weight, "layers.0.norm1.bias": the master, or the low-precision value where there is
// none. nullptr: neither.
const TensorEntry* stored_weight(const StepReader& step, const std::string& native);

// Returns `flags` with data to read: the user's --data.train or --data.valid, or mock data where the run had that. A
// path that config.json records is not opened: kUsage with the command line `words`, completed by that path, to be
// copied.
std::vector<std::string> flags_with_data(const StepReader& step, const std::vector<std::string>& flags,
                                         const std::vector<std::string>& words);

}  // namespace gt
