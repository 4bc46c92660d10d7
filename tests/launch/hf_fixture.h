// Tiny models that transformers wrote, with what it predicts (tests/golden/make_hf_*.py), and the same question asked here.
#pragma once
#include <string>
#include <vector>

#include "launch/commands/loaded_model.h"
#include "launch/verify/pieces.h"

namespace gt {

struct Prompt {
  std::vector<int32_t> tokens;
  std::vector<float> logits;  // after the last of them
};
std::vector<Prompt> prompts_of(const std::string& folder);  // of its logits.safetensors

// Logits after a prompt, by the forward pass of training.
std::vector<float> logits_of(LoadedModel&, const std::vector<int32_t>& tokens);

double largest_difference(const std::vector<float>&, const std::vector<float>&);

// All tensors of a safetensors file or folder, by name; integers as they are in `integers`.
Logical tensors_of(const std::string& path);

// Tensors by Hugging Face's names, `prefix` in front of them, as the model's parameters by ours.
Logical native_tensors(const ModelConfig&, const Logical& theirs, const std::string& prefix = "");

}  // namespace gt
