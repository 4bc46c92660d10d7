#include "launch/tools/weights/peft_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "checkpoint/weights/source_file.h"
#include "kernels/core/file_kind.h"
#include "kernels/core/text.h"
#include "launch/options/json_text.h"

namespace gt {
namespace {

// Settings that the adapter's tensors and their sum with the base do not depend on. Which modules are adapted is read
// from the tensors.
constexpr std::string_view kWithoutEffect[] = {
    "auto_mapping",   "ensure_weight_tying", "eva_config", "exclude_modules", "fan_in_fan_out",   "inference_mode",
    "layers_pattern", "peft_version",        "revision",   "task_type",       "qalora_group_size"};
constexpr std::string_view kRead[] = {"base_model_name_or_path",
                                      "bias",
                                      "init_lora_weights",
                                      "lora_alpha",
                                      "lora_dropout",
                                      "megatron_core",
                                      "peft_type",
                                      "r",
                                      "target_modules",
                                      "use_rslora"};
// Known settings that are not built; all others are refused as unknown. Both may be null, false or empty.
constexpr std::string_view kNotBuilt[] = {
    "alora_invocation_tokens", "alpha_pattern",           "arrow_config", "corda_config",
    "layer_replication",       "layers_to_transform",     "loftq_config", "lora_bias",
    "megatron_config",         "modules_to_save",         "rank_pattern", "runtime_config",
    "target_parameters",       "trainable_token_indices", "use_dora",     "use_qalora"};
// Initial values of adapters that leave the base as it is.
constexpr std::string_view kPlainInit[] = {"gaussian", "eva", "orthogonal"};

bool in(std::span<const std::string_view> list, std::string_view key) {
  return std::find(list.begin(), list.end(), key) != list.end();
}

// Collects what cannot be imported.
class Reader {
 public:
  Reader(const std::string& text, const std::string& where) {
    try {
      json_ = parse_json(text, where);
    } catch (const Error& e) {
      const std::string kind = text.starts_with("{") ? "" : other_kind(text);
      throw Error(kind.empty() ? e.what() : where + ": no adapter_config.json: it " + kind, Exit::kDamaged);
    }
    GT_REQUIRE(json_.kind == JsonValue::Kind::kObject, Exit::kDamaged, where, ": expected an object, found ",
               kind_name(json_.kind));
    word("peft_type", "LORA", true);
    word("bias", "none", false);
    word("megatron_core", "megatron.core", false);
    init();
    for (size_t k = 0; k < json_.keys.size(); ++k) require_neutral(json_.keys[k], json_.items[k]);
  }
  LoraConfig lora() {
    LoraConfig l;
    double rank = 0;
    number("r", rank, 1, 65536);
    if (rank != std::floor(rank)) problem("r", "a whole number");
    if (rank >= 1 && rank <= 65536) l.rank = static_cast<int64_t>(rank);  // else reported above
    number("lora_alpha", l.alpha, 1e-6, 1e6);
    if (given("lora_dropout") != nullptr) number("lora_dropout", l.dropout, 0, 0.999);
    const JsonValue* root = given("use_rslora");
    if (root != nullptr && root->kind != JsonValue::Kind::kBool) problem("use_rslora", "true or false");
    if (root != nullptr && root->boolean) l.alpha *= std::sqrt(rank);  // scaled by alpha / sqrt(r)
    return l;
  }
  std::string base() {
    const JsonValue* v = given("base_model_name_or_path");
    if (v != nullptr && v->kind == JsonValue::Kind::kString && !v->text.empty()) return v->text;
    problem("base_model_name_or_path", "a Hugging Face folder");
    return "";
  }
  std::vector<std::string> targets() {
    std::vector<std::string> out;
    const JsonValue* v = given("target_modules");
    if (v == nullptr || v->kind == JsonValue::Kind::kString) return out;  // a pattern, or all
    if (v->kind != JsonValue::Kind::kArray) problem("target_modules", "a list or a text");
    for (const JsonValue& m : v->items)
      if (m.kind == JsonValue::Kind::kString) out.push_back(m.text);
    return out;
  }
  std::vector<std::string> problems;

 private:
  const JsonValue* given(std::string_view key) const {
    const JsonValue* v = json_.find(key);
    return v == nullptr || v->kind == JsonValue::Kind::kNull ? nullptr : v;
  }
  static std::string shown(const JsonValue& v) {
    if (v.kind == JsonValue::Kind::kBool) return v.boolean ? "true" : "false";
    return v.text.empty() ? kind_name(v.kind) : printable(v.text.substr(0, 60));
  }
  void problem(std::string_view key, const std::string& expected) {
    const JsonValue* v = given(key);
    problems.push_back(fmt::format("{}: {}, expected {}", key, v == nullptr ? "missing" : shown(*v), expected));
  }
  void word(std::string_view key, std::string_view value, bool required) {
    const JsonValue* v = given(key);
    if (v == nullptr ? required : v->kind != JsonValue::Kind::kString || v->text != value)
      problem(key, std::string(value));
  }
  void number(std::string_view key, double& value, double low, double high) {
    const JsonValue* v = given(key);
    const bool is_number = v != nullptr && v->kind == JsonValue::Kind::kNumber && parse_double(v->text, value);
    if (!is_number || value < low || value > high) problem(key, fmt::format("a number {} to {}", low, high));
  }
  void init() {
    const JsonValue* v = given("init_lora_weights");
    if (v == nullptr || v->kind == JsonValue::Kind::kBool) return;
    if (v->kind != JsonValue::Kind::kString || !in(kPlainInit, v->text))
      problems.push_back(
          fmt::format("init_lora_weights: {}, expected true or {}: others change the base weights before training, so "
                      "that the adapter does not fit the base as it is; PEFT's save_pretrained converts such an "
                      "adapter if it is given path_initial_model_for_weight_conversion",
                      shown(*v), fmt::join(kPlainInit, " or ")));
  }
  void require_neutral(const std::string& key, const JsonValue& v) {
    if (in(kRead, key) || in(kWithoutEffect, key)) return;
    const bool nothing = v.kind == JsonValue::Kind::kBool ? !v.boolean : v.text.empty() && v.items.empty();
    if (nothing) return;
    if (in(kNotBuilt, key)) return problem(key, "null, as it is not built");
    problems.push_back(fmt::format("{}: {}: not known, and may change what the adapter does; expected null",
                                   printable(key.substr(0, 100)), shown(v)));
  }
  JsonValue json_;
};

}  // namespace

bool PeftConfig::adapts(const std::string& module) const {
  return targets.empty() || std::any_of(targets.begin(), targets.end(),
                                        [&](const std::string& t) { return module == t || module.ends_with("." + t); });
}

PeftConfig parse_peft_config(const std::string& text, const std::string& where) {
  Reader in(text, where);
  PeftConfig out{.lora = in.lora(), .base = in.base(), .targets = in.targets()};
  constexpr size_t kShown = 40;
  const size_t all = in.problems.size();
  if (all > kShown) in.problems.resize(kShown), in.problems.push_back(fmt::format("… and {} more", all - kShown));
  GT_REQUIRE(all == 0, Exit::kDamaged, where,
             ": no LoRA adapter that can be imported:", fmt::format("\n  {}", fmt::join(in.problems, "\n  ")));
  return out;
}

}  // namespace gt
