// Files that a run keeps in its checkpoints besides the tensors, byte for byte: its tokenizer's, under their usual
// names, and those of the Hugging Face folder that it began from which only an export needs, as "hf-" and their name.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "launch/config/config.h"

namespace gt {

constexpr const char *kBaseConfig = "hf-config.json", *kBaseGeneration = "hf-generation_config.json";

// Returns the files of the tokenizer at `path` (data.tokenizer, --tokenizer): those that define it (tokenizer_aux), and
// what else a folder holds of it, such as chat templates. Contents are read here, through links. Empty for an empty
// path. Throws as tokenizer_files.
std::vector<AuxFile> whole_tokenizer(const std::string& path);

// Returns config.json and generation_config.json of a Hugging Face folder. Throws kUsage if one cannot be read.
std::vector<AuxFile> base_configs(const std::string& folder);

// Returns the tokenizer's files of a Hugging Face folder as they are, for exports: where this program cannot read them,
// or reads them in another form.
std::vector<AuxFile> base_tokenizer(const std::string& folder);

// Returns what a run keeps: the tokenizer of its data.tokenizer, else that of `step`, and the files of the folder that
// `step` began from. step: the directory that the run's weights came from; "": none.
std::vector<AuxFile> files_to_keep(const Config&, const std::string& step);

// Returns the tokenizer's files of a step for an export, under their paths in a Hugging Face folder.
std::vector<AuxFile> exported_tokenizer(const std::string& step);

// Returns whether an export may write a file, or a folder of chat templates, of this name besides the weights.
bool is_folder_file(const std::string& name);

}  // namespace gt
