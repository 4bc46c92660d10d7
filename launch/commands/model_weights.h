// A model's tensors by our names and by those of Hugging Face, and the two descriptions of its shape: our model section
// and a Hugging Face config.json. Goes by the table of families (model/families/family.h); knows no file format.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/weights.h"
#include "launch/config/config.h"
#include "model/families/family.h"

namespace gt {

struct ModelWeight {
  std::string native;          // "layers.3.attn.qkv.weight"
  std::vector<int64_t> shape;  // ours: linear weights are out x in
  ShardSpec shard;             // blocks of dimension 0: Q, K, V
  struct Block {               // of dimension 0, a tensor of its own in a Hugging Face folder
    std::string name;          // "transformer.h.3.attn.c_attn.weight"
    int64_t rows;              // of ours
  };
  std::vector<Block> hf;       // in order, all rows together; empty: the family has no name for it
  bool transposed = false;     // Hugging Face has it in x out
  std::vector<int64_t> hf_shape(size_t block) const;
};

// In the order of the model; the head only when it is not tied.
std::vector<ModelWeight> model_weights(const ModelConfig&);

// The family of a checked config.
const Family& family_of(const ModelConfig&);

// The tensors of an llm.c file in its order: those of all blocks stacked.
std::vector<WeightInfo> llmc_tensors(const LlmcShape&);

// Row-major [rows, cols] to [cols, rows].
std::vector<float> transpose(const std::vector<float>&, int64_t rows, int64_t cols);

// config.json of a Hugging Face model, keys sorted. end_of_text: id for bos and eos; below 0: none. dtype: "float32".
std::string hf_config_json(const ModelConfig&, int64_t end_of_text, const std::string& dtype);
// What a config.json of hf_config_json does not say of this model, a sentence each: no reader would build it.
std::vector<std::string> not_in_hf_config(const ModelConfig&, const std::string& text);

struct HfConfig {
  ModelConfig model;
  int64_t end_of_text = -1;  // eos_token_id, where it is one number
  std::vector<std::string> warnings;
};
// kDamaged: none of the families, or settings that this one does not have here, all of them listed.
HfConfig parse_hf_config(const std::string& text, const std::string& where);

// The model section as flags: {"--model.layers", "12", …}; load_config checks and completes it.
std::vector<std::string> model_flags(const ModelConfig&);

}  // namespace gt
