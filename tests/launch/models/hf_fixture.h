// Tiny models written by transformers, with their predictions (tests/golden/make_hf_*.py), and our predictions for the
// same prompts.
#pragma once
#include <string>
#include <vector>

#include "launch/tools/verify/mesh_run.h"
#include "launch/tools/verify/rank_record.h"
#include "launch/tools/weights/loaded_model.h"

namespace gt {

struct Prompt {
  std::vector<int32_t> tokens;
  std::vector<float> logits;  // after the last token
};
std::vector<Prompt> prompts_of(const std::string& folder);  // from its logits.safetensors

// Returns the logits after a prompt, computed by the training forward pass.
std::vector<float> logits_of(LoadedModel&, const std::vector<int32_t>& tokens);

double largest_difference(const std::vector<float>&, const std::vector<float>&);

// Returns all tensors of a safetensors file or folder by name; integer tensors keep integral values.
Logical tensors_of(const std::string& path);

// Returns the i32 matrix `samples` of a safetensors file by rows.
std::vector<std::vector<int32_t>> samples_of(const std::string& file);

// A run that trains as the scripts of tests/readers do: AdamW with betas 0.9 and 0.95 and weight decay 0.1 at a
// constant rate, no clipping, the `samples` of `file`, for as many steps as `file` has `losses`. The caller sets the
// weights.
MeshRun adamw_run(const ModelConfig&, const MeshShape&, double lr, int64_t global_batch, const std::string& file);

// Converts tensors with Hugging Face's names (prefixed by `prefix`) to the model's parameters with ours.
Logical native_tensors(const ModelConfig&, const Logical& theirs, const std::string& prefix = "");

}  // namespace gt
