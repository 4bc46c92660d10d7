#include "launch/tools/weights/exported_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "kernels/core/json.h"
#include "launch/tools/weights/model_weights.h"

namespace gt {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kDtypeKeys[] = {"dtype", "torch_dtype"};  // the first since transformers 4.56
// Keys of hf_config_json that are not the model's.
constexpr std::string_view kBeside[] = {"architectures", "model_type", "torch_dtype", "bos_token_id", "eos_token_id"};

const char* torch_name(DType t) { return t == DType::kF32 ? "float32" : t == DType::kBF16 ? "bfloat16" : "float16"; }

// A discarded value where the text is no object.
Json parsed(const std::string& text) {
  Json json = parse_json_if_valid<Json>(text, {.comments = true});
  return json.is_object() ? json : Json(Json::value_t::discarded);
}

// The model's keys as this program writes them.
Json written(const ModelConfig& m) {
  Json json = parse_json<Json>(hf_config_json(m, -1, torch_name(DType::kF32)), "config", kOwnJson);
  for (const std::string_view key : kBeside) json.erase(std::string(key));
  return json;
}

void set_dtype(Json& config, DType dtype) {
  bool set = false;
  for (const char* key : kDtypeKeys)
    if (config.contains(key)) config[key] = torch_name(dtype), set = true;
  if (!set && dtype != DType::kF32) config["torch_dtype"] = torch_name(dtype);
}

// Puts the keys that differ between `before` and `after` into the folder's config.
void apply_changes(Json& config, const Json& before, const Json& after) {
  const auto differs = [&](const std::string& key) {
    return before.contains(key) != after.contains(key) || (after.contains(key) && before[key] != after[key]);
  };
  bool positions = false;
  for (const Json* side : {&before, &after})
    for (const auto& [key, value] : side->items()) {
      if (!differs(key)) continue;
      positions = positions || key.starts_with("rope_");
      if (after.contains(key))
        config[key] = after[key];
      else
        config.erase(key);
    }
  if (!positions) return;
  config.erase("rope_parameters");  // replaced by the older keys, which every version reads
  for (const auto& [key, value] : after.items())
    if (key.starts_with("rope_")) config[key] = value;
}

void set_class(Json& config, const Family& family) {
  if (!config.contains("model_type")) config["model_type"] = family.model_type;
  const Json* const classes = config.contains("architectures") ? &config["architectures"] : nullptr;
  if (classes == nullptr || !classes->is_array() ||
      std::find(classes->begin(), classes->end(), family.architecture) == classes->end())
    config["architectures"] = {family.architecture};
  config.erase("auto_map");  // names files of code, which are not kept
}

// Returns whether a reader of this config.json builds this model.
bool describes(const std::string& text, const ModelConfig& m) {
  try {
    return lost_in_hf_config(m, text).empty();
  } catch (const Error&) { return false; }
}

}  // namespace

std::optional<DType> stated_dtype(const std::string& base) {
  const Json config = parsed(base);
  if (config.is_discarded()) return std::nullopt;
  for (const char* key : kDtypeKeys) {
    if (!config.contains(key) || !config[key].is_string()) continue;
    for (const DType t : {DType::kF32, DType::kBF16, DType::kF16})
      if (config[key] == torch_name(t)) return t;
  }
  return std::nullopt;
}

std::string exported_config(const ModelConfig& m, const std::string& base, int64_t end_of_text, DType dtype) {
  const std::string ours = hf_config_json(m, end_of_text, torch_name(dtype));
  Json config = parsed(base);
  if (base.empty() || config.is_discarded()) return ours;
  const ModelConfig origin = parse_hf_config(base, "hf-config.json", true).model;
  if (origin.arch == m.arch) {
    ModelConfig now = m;
    if (now.position == PositionKind::kRotary && now.seq < origin.seq) now.seq = origin.seq;
    apply_changes(config, written(origin), written(now));
    set_dtype(config, dtype);
    set_class(config, family_of(m));
    std::string text = config.dump(2) + "\n";
    if (describes(text, now)) return text;
  }
  Json out = parse_json<Json>(ours, "config", kOwnJson);
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
    if (config.contains(key)) out[key] = config[key];
  return out.dump(2) + "\n";
}

std::string with_ids_of(const Tokenizer& t, const std::string& base) {
  Json config = parsed(base);
  if (config.is_discarded()) return base;
  const std::pair<const char*, int32_t> ids[] = {
      {"bos_token_id", t.bos()}, {"eos_token_id", t.eos() >= 0 ? t.eos() : t.eod()}, {"pad_token_id", t.pad()}};
  for (const auto& [key, id] : ids) config[key] = id >= 0 ? Json(id) : Json();
  return config.dump(2) + "\n";
}

}  // namespace gt
