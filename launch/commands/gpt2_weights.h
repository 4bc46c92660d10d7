// GPT-2's tensors by our names and by those of Hugging Face, and the two descriptions of its shape: our model section
// and a Hugging Face config.json. Knows no file format.
#pragma once
#include <string>
#include <vector>

#include "launch/config/config.h"

namespace gt {

struct Gpt2Weight {
  std::string native;          // "layers.3.attn.qkv.weight"
  std::string hf;              // "transformer.h.3.attn.c_attn.weight"
  std::vector<int64_t> shape;  // ours: linear weights are out x in
  bool transposed = false;     // Hugging Face's linear weights of GPT-2 are in x out
  int blocks = 1;              // parts of dimension 0: Q, K, V
  std::vector<int64_t> hf_shape() const;
};

// In the order of the model; the head only when it is not tied.
std::vector<Gpt2Weight> gpt2_weights(const ModelConfig&);

// Row-major [rows, cols] to [cols, rows].
std::vector<float> transpose(const std::vector<float>&, int64_t rows, int64_t cols);

// config.json of a Hugging Face GPT-2, keys sorted. end_of_text: id for bos and eos; below 0: none. dtype: "float32".
std::string hf_config_json(const ModelConfig&, int64_t end_of_text, const std::string& dtype);

struct HfConfig {
  ModelConfig model;
  int64_t end_of_text = -1;  // eos_token_id, where it is one number
  std::vector<std::string> warnings;
};
// kDamaged: no GPT-2, or settings that our GPT-2 does not have, all of them listed.
HfConfig parse_hf_config(const std::string& text, const std::string& where);

// The model section as flags: {"--model.layers", "12", …}; load_config checks and completes it.
std::vector<std::string> model_flags(const ModelConfig&);

}  // namespace gt
