// Maps a model's tensors between our names and Hugging Face's, and its shape between our model section and a Hugging
// Face config.json. Driven by the table of families (model/families/family.h); independent of file formats.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/weights/weights.h"
#include "launch/config/config.h"
#include "model/families/family.h"

namespace gt {

struct ModelWeight {
  std::string native;          // "layers.3.attn.qkv.weight"
  std::vector<int64_t> shape;  // native layout: linear weights are [out, in], those of experts [experts, out, in]
  ShardSpec shard;             // blocks of dimension 0: Q, K, V
  struct Block {               // rows that are a separate tensor in a Hugging Face folder
    std::string name;          // "transformer.h.3.attn.c_attn.weight"
    int64_t rows;              // native rows
  };
  std::vector<Block> hf;               // in order, covering all rows; empty: the family has no such tensor
  std::vector<std::string> hf_copies;  // further names under which such a folder may hold all of it once more
  bool transposed = false;             // Hugging Face stores [in, out]
  bool always_f32 = false;             // exported in FP32, whatever the others' dtype: decides between near scores
  bool adapter = false;                // of LoRA: no tensor of a Hugging Face model (lora_weights.h)
  std::vector<int64_t> hf_shape(size_t block) const;
};

// Returns the weights in model order; the head only if it is not tied.
std::vector<ModelWeight> model_weights(const ModelConfig&);

// Returns the family of a checked config.
const Family& family_of(const ModelConfig&);

// Returns the tensors of an llm.c file in file order; those of all blocks are stacked.
std::vector<WeightInfo> llmc_tensors(const LlmcShape&);

// Transposes row-major [rows, cols] to [cols, rows].
std::vector<float> transpose(const std::vector<float>&, int64_t rows, int64_t cols);

// Returns the config.json of a Hugging Face model with sorted keys. end_of_text: id for bos and eos; negative: none.
// dtype: "float32".
std::string hf_config_json(const ModelConfig&, int64_t end_of_text, const std::string& dtype);
// Returns the properties of this model that hf_config_json cannot express, one sentence each; a reader would build a
// different model. Those that act in training alone (dropout, z-loss) do not count.
std::vector<std::string> lost_in_hf_config(const ModelConfig&, const std::string& text);

struct HfConfig {
  ModelConfig model;
  int64_t end_of_text = -1;  // eos_token_id, if it is a single number
  std::vector<std::string> warnings;
};
// Throws kDamaged listing all problems: an unknown family, settings not supported for it, or keys that may change the
// model and are not known; `ignore_unknown`: these are warnings.
HfConfig parse_hf_config(const std::string& text, const std::string& where, bool ignore_unknown = false);

// Returns the model section as flags, {"--model.layers", "12", …}, for load_config to check and complete.
std::vector<std::string> model_flags(const ModelConfig&);

}  // namespace gt
