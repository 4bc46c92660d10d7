// Low-rank adapters outside checkpoints: initial values, their sum with the base weights, and the folder
// format of PEFT (adapter_config.json, adapter_model.safetensors).
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/weights/weights.h"
#include "launch/config/config.h"
#include "model/families/family.h"

namespace gt {

// A tensor of adapter_model.safetensors: rows of one of our parameters.
struct PeftTensor {
  std::string name;    // "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
  std::string native;  // "layers.0.attn.qkv.lora_a"
  int64_t first_row = 0, rows = 0, columns = 0;
  std::string module;  // "self_attn.q_proj", an entry of PEFT's target_modules
};
// Returns the tensors of a model with adapters, by name. Throws kUsage where PEFT cannot express them: adapters of q, k
// and v of a family that has one tensor for all three.
std::vector<PeftTensor> peft_tensors(const ModelConfig&);

// Returns the adapter_config.json of adapters whose base is model.lora_base.
std::string peft_config_json(const ModelConfig&);

bool is_peft_folder(const std::string& folder);

// A PEFT folder, opened and checked against its base model.
class PeftFolder {
 public:
  // base: returns the model of a Hugging Face folder. Throws kUsage if that folder or a file is missing, kDamaged
  // listing every setting and tensor that cannot be imported.
  PeftFolder(Vfs&, const std::string& folder, const std::function<ModelConfig(const std::string& base)>& base);
  const std::string& base() const { return base_; }    // absolute
  const ModelConfig& model() const { return model_; }  // with its adapters
  // Returns elements [first, first + count) of the adapter parameter `native`; 0 where the folder has no adapter.
  std::vector<float> read(const std::string& native, int64_t first, int64_t count);

 private:
  std::string base_;
  ModelConfig model_;
  std::unique_ptr<WeightFile> file_;
  std::vector<std::pair<PeftTensor, size_t>> tensors_;  // with their number in the file
};

// Returns elements [first, first + count) of the initial value of an adapter parameter.
std::vector<float> initial_adapter(const ParamSpec&, uint64_t seed, int64_t first, int64_t count);

// Adds adapters to the base weights: W + (alpha / rank) B A, summed in f64, rounded once.
class AdapterMerge {
 public:
  // Returns a whole parameter.
  using Read = std::function<std::vector<float>(const std::string& native, int64_t count)>;
  AdapterMerge(const ModelConfig& model, Read read) : spec_(describe(model)), read_(std::move(read)) {}
  // Adds to elements first, first + 1, … of a parameter; nothing if it has no adapter.
  void add_to(const std::string& native, int64_t first, std::vector<float>& values);

 private:
  const ModelSpec spec_;
  const Read read_;
  std::string loaded_;  // weight whose adapter a_ and b_ hold
  std::vector<float> a_, b_;
};

}  // namespace gt
