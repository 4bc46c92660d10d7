// Foreign weights and what they state about their model: a Hugging Face or PEFT folder, our own export, a file of
// llm.c.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/weights/weights.h"
#include "launch/config/config.h"
#include "launch/tools/weights/lora_weights.h"
#include "launch/tools/weights/subcommands.h"

namespace gt {

struct Origin {
  std::unique_ptr<WeightFile> file;
  ModelConfig model;
  std::unique_ptr<PeftFolder> adapter;  // trained adapters; nullptr: none, and new ones begin at their initial values
  bool hf = false;                      // Hugging Face's names and orientation
  std::vector<AuxFile> aux;             // files of the folder that only an export needs (launch/train/kept_files.h)
  std::string tokenizer;                // its file or folder, or none
  std::string other_ids;                // how the ids of a tokenizer differ that replaces the folder's; "": not at all
  std::vector<std::string> warnings;
};

// Throws kUsage if the source does not exist or leads nowhere, kDamaged naming what a file is that is no weights, or
// what the model has that cannot be imported.
Origin open_origin(Vfs&, const ImportArgs&);

// Returns a model completed and checked. Throws kDamaged naming `where`, which states it.
ModelConfig checked_model(const ModelConfig&, const std::string& where);

}  // namespace gt
