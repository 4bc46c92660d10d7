// config.json and generation_config.json of an exported Hugging Face folder: those of the folder that the run began
// from, with the keys that the run changed.
#pragma once
#include <optional>
#include <string>

#include "data/tokenizer/tokenizer.h"
#include "kernels/core/tensor.h"
#include "launch/config/config.h"

namespace gt {

// Returns `base`, the config.json of that folder, for the model as it is now. Keys whose values the run did not change
// are the folder's, as are the keys of its tokenizer and those that are not known; a context that was only shortened
// for training is the folder's too. Without `base`, or where it is of another family: hf_config_json.
// end_of_text: where `base` is empty.
std::string exported_config(const ModelConfig&, const std::string& base, int64_t end_of_text, DType dtype);

// Returns the dtype of the weights that a config.json states, if it is one that can be written.
std::optional<DType> stated_dtype(const std::string& base);

// Returns `base` with the ids of a tokenizer that takes the place of the folder's.
std::string with_ids_of(const Tokenizer&, const std::string& base);

}  // namespace gt
