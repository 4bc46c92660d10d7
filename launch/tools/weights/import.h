// Foreign weights as step 0 of a checkpoint folder: gpttrain import, and train --from.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "launch/config/config.h"
#include "launch/tools/weights/subcommands.h"

namespace gt {

struct Imported {
  std::string path;                // of the step
  size_t tensors = 0;              // of the checkpoint
  size_t read = 0, in_source = 0;  // tensors of the source: read to the last element, and there
  int64_t parameters = 0, bytes = 0;
  std::vector<AuxFile> tokenizer;  // files kept beside the weights; empty: there is none
  bool generates = true;           // `generate` runs the model
  std::vector<std::string> warnings;
};
// Streams the weights of args.from to args.output as a committed step 0. `run`: the config of the run that will train
// them, which the step keeps; nullptr: one of their model alone. Throws kUsage if the folder holds steps or the source
// does not exist, kDamaged if the source does not fit the model that it describes or is damaged.
Imported import_weights(const ImportArgs& args, const Config* run = nullptr);

// Returns the model of a Hugging Face folder, completed and checked, and its tokenizer, if that can be read. Reads no
// weights. Throws kUsage if there is no config.json, kDamaged if it describes no model that can be imported.
GivenModel model_of_folder(const std::string& folder, bool ignore_unknown);

}  // namespace gt
