#include "launch/tools/weights/lora_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "checkpoint/weights/source_file.h"
#include "kernels/core/files.h"
#include "kernels/core/rng.h"
#include "kernels/core/text.h"
#include "launch/tools/weights/model_weights.h"
#include "launch/tools/weights/peft_config.h"

namespace gt {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWeight = ".weight";
constexpr const char *kConfigFile = "adapter_config.json", *kTensorFile = "adapter_model.safetensors";
constexpr const char* kPeftPrefix = "base_model.model.";

std::string without_suffix(const std::string& name) { return name.substr(0, name.size() - kWeight.size()); }

// "attn.qkv" of "layers.3.attn.qkv.weight".
std::string linear_of(const std::string& weight) {
  return without_suffix(leaf_class(weight)).substr(std::string_view("layers.*.").size());
}

// "self_attn.q_proj" of "model.layers.3.self_attn.q_proj.weight": what follows the number of the block.
std::string module_of(const std::string& name) {
  const size_t dot = name.find('.', name.find_first_of("0123456789"));
  return without_suffix(name.substr(dot + 1));
}

// "model.layers.3.self_attn.q_proj" of "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight".
std::string module_path(const std::string& tensor) {
  const size_t begin = std::string_view(kPeftPrefix).size();
  return tensor.substr(begin, tensor.rfind(".lora_") - begin);
}

}  // namespace

std::vector<PeftTensor> peft_tensors(const ModelConfig& m) {
  const ModelSpec spec = describe(m);
  std::vector<PeftTensor> out;
  for (const ModelWeight& w : model_weights(m)) {
    const std::string linear = without_suffix(w.native);
    const ParamSpec* a = w.native.ends_with(kWeight) ? spec.find(linear + ".lora_a") : nullptr;
    if (a == nullptr) continue;
    const std::vector<int> blocks = lora_blocks(m, linear_of(w.native));
    const bool together = blocks.front() < 0;
    GT_REQUIRE(together || w.hf.size() > 1, Exit::kUsage, w.native, ": ", family_of(m).name,
               " has one tensor for q, k and v, and PEFT no adapters of each; only model.lora_separate_qkv false "
               "can be exported");
    int64_t row = 0;
    for (size_t k = 0; k < w.hf.size(); row += w.hf[k++].rows) {
      const auto at = std::find(blocks.begin(), blocks.end(), static_cast<int>(k));
      if (!together && at == blocks.end()) continue;
      const int64_t block = together ? 0 : at - blocks.begin(), rank = m.lora.rank;
      const std::string theirs = without_suffix(w.hf[k].name), module = module_of(w.hf[k].name);
      const std::string stem = kPeftPrefix + theirs;
      out.push_back({stem + ".lora_A.weight", linear + ".lora_a", block * rank, rank, a->shape[1], module});
      out.push_back({stem + ".lora_B.weight", linear + ".lora_b", row, w.hf[k].rows, rank, module});
    }
  }
  std::sort(out.begin(), out.end(), [](const auto& x, const auto& y) { return x.name < y.name; });
  return out;
}

std::string peft_config_json(const ModelConfig& m) {
  std::set<std::string> modules;
  for (const PeftTensor& t : peft_tensors(m)) modules.insert(t.module);
  const std::span<const NameRule> names = family_of(m).names;
  const double alpha = m.lora.alpha > 0 ? m.lora.alpha : static_cast<double>(m.lora.rank);
  nlohmann::json out{
      {"peft_type", "LORA"},       {"r", m.lora.rank}, {"lora_alpha", alpha},   {"lora_dropout", m.lora.dropout},
      {"target_modules", modules}, {"bias", "none"},   {"inference_mode", true}};
  out["fan_in_fan_out"] = std::any_of(names.begin(), names.end(), [](const NameRule& r) { return r.transposed; });
  out["task_type"] = m.predicts_pairs() ? nlohmann::json() : nlohmann::json("CAUSAL_LM");
  out["base_model_name_or_path"] = m.lora_base.empty() ? nlohmann::json() : nlohmann::json(m.lora_base);
  return out.dump(2) + "\n";
}

bool is_peft_folder(const std::string& folder) { return is_there(folder + "/" + kConfigFile); }

namespace {

void require_none(std::vector<std::string> problems, const std::string& where) {
  constexpr size_t kShown = 40;
  const size_t all = problems.size();
  if (all > kShown) problems.resize(kShown), problems.push_back(fmt::format("… and {} more", all - kShown));
  GT_REQUIRE(all == 0, Exit::kDamaged, where, ": does not fit the model that it stands on",
             fmt::format(":\n  {}", fmt::join(problems, "\n  ")));
}

// The folder as written, or relative to the adapter's.
std::string base_folder(const std::string& written, const std::string& folder) {
  std::error_code ec;
  for (const std::string& path : {written, folder + "/" + written})
    if (fs::is_directory(path, ec)) return fs::absolute(path).lexically_normal().string();
  fail(Exit::kUsage, folder, "/", kConfigFile, ": base_model_name_or_path ", written.substr(0, 200),
       ": is not a folder of this machine; write the path of the Hugging Face folder there");
}

// The linear layers of which the file has a tensor.
std::vector<std::string> targets_in(const std::map<std::string, size_t>& found, const ModelConfig& model) {
  std::vector<std::string> out;
  for (const std::string& target : lora_targets(model)) {
    if (target == "qkv" && model.lora.separate_qkv) continue;
    ModelConfig one = model;
    one.lora.targets = {target};
    const std::vector<PeftTensor> tensors = peft_tensors(one);
    if (std::any_of(tensors.begin(), tensors.end(), [&](const auto& t) { return found.count(t.name) > 0; }))
      out.push_back(target);
  }
  return out;
}

}  // namespace

PeftFolder::PeftFolder(Vfs& vfs, const std::string& folder,
                       const std::function<ModelConfig(const std::string& base)>& base) {
  const std::string config = folder + "/" + kConfigFile, tensors = folder + "/" + kTensorFile;
  const PeftConfig settings = parse_peft_config(read_whole_file(config, kMaxJsonBytes), config);
  base_ = base_folder(settings.base, folder);
  GT_REQUIRE(is_there(tensors), Exit::kUsage, tensors,
             ": does not exist; give the whole PEFT folder, with its tensors as safetensors (adapter_model.bin holds "
             "pickled Python objects, which are not read)");
  file_ = open_safetensors(vfs, tensors);
  model_ = base(base_);
  model_.lora = settings.lora;
  model_.lora.separate_qkv = family_of(model_).defaults.lora.separate_qkv;
  model_.lora_base = base_;

  std::vector<std::string> problems;
  std::map<std::string, size_t> found;
  for (size_t k = 0; k < file_->list().size(); ++k) found[file_->list()[k].name] = k;
  model_.lora.targets = targets_in(found, model_);
  if (model_.lora.targets.empty()) problems.push_back("it has no adapter of a linear layer of the model's blocks");
  for (const PeftTensor& t : model_.lora.targets.empty() ? std::vector<PeftTensor>() : peft_tensors(model_)) {
    const auto at = found.find(t.name);
    if (at == found.end()) {
      problems.push_back(t.name + ": missing");
      continue;
    }
    const WeightInfo& info = file_->list()[at->second];
    const std::vector<int64_t> shape{t.rows, t.columns};
    if (info.shape != shape)
      problems.push_back(fmt::format("{}: {}, expected {}", t.name, to_string(info.shape), to_string(shape)));
    if (info.dtype != "f32" && info.dtype != "bf16" && info.dtype != "f16")
      problems.push_back(fmt::format("{}: {}, expected f32, bf16 or f16", t.name, info.dtype));
    if (const std::string module = module_path(t.name); !settings.adapts(module))
      problems.push_back(t.name + ": target_modules does not name it, so that PEFT leaves it out");
    tensors_.emplace_back(t, at->second);
    found.erase(at);
  }
  for (const auto& [name, k] : found) problems.push_back(name + ": unknown");
  require_none(problems, tensors);
}

std::vector<float> PeftFolder::read(const std::string& native, int64_t first, int64_t count) {
  std::vector<float> out(static_cast<size_t>(count));
  for (const auto& [t, k] : tensors_) {
    if (t.native != native) continue;
    const int64_t begin = t.first_row * t.columns, end = begin + t.rows * t.columns;
    const int64_t from = std::max(first, begin), to = std::min(first + count, end);
    if (from >= to) continue;
    const std::vector<float> part = file_->read(k, from - begin, to - from);
    std::copy(part.begin(), part.end(), out.begin() + (from - first));
  }
  return out;
}

std::vector<float> initial_adapter(const ParamSpec& p, uint64_t seed, int64_t first, int64_t count) {
  std::vector<float> out(static_cast<size_t>(count));
  if (p.init.kind == Init::Kind::kNormal)
    philox_normals(stream_key(seed, "init/" + p.name), static_cast<uint64_t>(first), count, p.init.stddev, out.data());
  return out;
}

void AdapterMerge::add_to(const std::string& native, int64_t first, std::vector<float>& values) {
  if (!native.ends_with(kWeight)) return;
  const std::string linear = without_suffix(native);
  const ParamSpec *a = spec_.find(linear + ".lora_a"), *b = spec_.find(linear + ".lora_b");
  if (a == nullptr) return;
  if (loaded_ != native) {
    a_ = read_(a->name, a->shape.numel()), b_ = read_(b->name, b->shape.numel());
    loaded_ = native;
  }
  const ParamSpec& w = spec_.param(native);
  const int64_t columns = w.shape[1], rank = b->shape[1], count = static_cast<int64_t>(values.size());
  const std::vector<int> blocks = lora_blocks(spec_.config, linear_of(native));
  for (size_t k = 0; k < blocks.size(); ++k) {
    const BlockRange rows =
        blocks[k] < 0 ? BlockRange{0, w.shape[0]} : local_block(w.shard.tp(), w.shape[0], blocks[k], 1);
    const float* const of_block = a_.data() + static_cast<int64_t>(k) * rank * columns;
    for (int64_t r = std::max(rows.first, first / columns); r < rows.first + rows.count; ++r) {
      const int64_t from = std::max(first, r * columns), to = std::min(first + count, (r + 1) * columns);
      if (from >= to) break;
      std::vector<double> sum(static_cast<size_t>(to - from));
      for (int64_t j = 0; j < rank; ++j) {
        const double factor = b_[static_cast<size_t>(r * rank + j)];
        const float* const row = of_block + j * columns + (from - r * columns);
        for (size_t c = 0; c < sum.size(); ++c) sum[c] += factor * row[c];
      }
      for (size_t c = 0; c < sum.size(); ++c) {
        float& v = values[static_cast<size_t>(from - first) + c];
        v = static_cast<float>(v + sum[c] * spec_.config.lora.scale());
      }
    }
  }
}

}  // namespace gt
