#include "launch/tools/weights/model_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "checkpoint/weights/source_file.h"
#include "kernels/core/check.h"
#include "kernels/core/file_kind.h"
#include "kernels/core/text.h"
#include "launch/options/value_words.h"

namespace gt {
namespace {

// Returns the rows of a weight's blocks when split into `blocks` tensors.
std::vector<int64_t> block_rows(const ParamSpec& p, size_t blocks) {
  const int64_t rows = p.shape.rank > 1 ? p.shape.rows() : p.shape[0];
  const AxisShard cut = p.shard.tp();
  const auto n = static_cast<int64_t>(blocks);
  if (n != cut.blocks || cut.heads == 0) return std::vector<int64_t>(blocks, rows / std::max<int64_t>(1, n));
  std::vector<int64_t> out;
  for (int b = 0; b < cut.blocks; ++b) out.push_back(local_block(cut, rows, b, 1).count);
  return out;
}

std::vector<int64_t> extents(const Shape& s) { return {s.dim.begin(), s.dim.begin() + s.rank}; }

}  // namespace

std::vector<int64_t> ModelWeight::hf_shape(size_t block) const {
  std::vector<int64_t> out{hf[block].rows};
  if (shape.size() > 1) out.push_back(shape.back());
  if (transposed) std::swap(out[0], out[1]);
  return out;
}

const Family& family_of(const ModelConfig& m) {
  const Family* f = find_family(m.arch);
  GT_CHECK(f != nullptr, "model.arch ", m.arch);
  return *f;
}

std::vector<ModelWeight> model_weights(const ModelConfig& m) {
  const Family& family = family_of(m);
  const ModelSpec spec = describe(m);
  std::vector<ModelWeight> out;
  for (const ParamSpec& p : spec.params) {
    if (!p.tied_to.empty()) continue;
    ModelWeight w{.native = p.name, .shape = extents(p.shape), .shard = p.shard};
    w.transposed = hf_transposed(family, p);
    w.always_f32 = p.role == Role::kRouter && p.frozen;
    w.adapter = spec.config.lora.rank > 0 && !p.frozen;
    const std::vector<std::string> names = hf_names(family, p);
    const std::vector<int64_t> rows = block_rows(p, names.size());
    for (size_t k = 0; k < names.size(); ++k) w.hf.push_back({names[k], rows[k]});
    w.hf_copies = hf_copies(family, spec, p.name);
    out.push_back(std::move(w));
  }
  return out;
}

std::vector<WeightInfo> llmc_tensors(const LlmcShape& s) {
  ModelConfig m;
  m.layers = s.layers, m.hidden = s.hidden, m.heads = s.heads, m.ffn = 4 * s.hidden, m.vocab = s.vocab, m.seq = s.seq;
  const ModelSpec spec = describe(m);
  std::vector<std::string> classes;  // in order of their first tensors
  std::vector<std::vector<WeightInfo>> stacks;
  for (const ParamSpec& p : spec.params) {
    if (!p.tied_to.empty()) continue;
    const std::string name = leaf_class(p.name);
    const auto at = static_cast<size_t>(std::find(classes.begin(), classes.end(), name) - classes.begin());
    if (at == classes.size()) classes.push_back(name), stacks.emplace_back();
    stacks[at].push_back({p.name, "", extents(p.shape)});
  }
  std::vector<WeightInfo> out;
  for (const auto& stack : stacks) out.insert(out.end(), stack.begin(), stack.end());
  return out;
}

std::vector<float> transpose(const std::vector<float>& in, int64_t rows, int64_t cols) {
  constexpr int64_t kTile = 32;
  std::vector<float> out(in.size());
  for (int64_t r0 = 0; r0 < rows; r0 += kTile)
    for (int64_t c0 = 0; c0 < cols; c0 += kTile)
      for (int64_t r = r0; r < std::min(rows, r0 + kTile); ++r)
        for (int64_t c = c0; c < std::min(cols, c0 + kTile); ++c)
          out[static_cast<size_t>(c * rows + r)] = in[static_cast<size_t>(r * cols + c)];
  return out;
}

namespace {

class HfWriter : public HfKeys {
 public:
  nlohmann::json json;  // keeps keys sorted

  void integer(const char* key, int64_t& value, int64_t, int64_t, int64_t) override { json[key] = value; }
  void number(const char* key, double& value, double, double, double) override { json[key] = value; }
  void boolean(const char* key, bool& value, bool) override { json[key] = value; }
  void choice(std::initializer_list<const char*> keys, uint8_t& value, std::span<const char* const> names) override {
    json[*keys.begin()] = names[value];
  }
  bool object(const char* key, const std::function<void(HfKeys&)>& visit) override {
    HfWriter inner;
    visit(inner);
    json[key] = std::move(inner.json);
    return true;
  }
  void word(const char* key, std::initializer_list<std::string_view> values, const char*) override {
    json[key] = *values.begin();
  }
  void only(const char*, bool) override {}
  void also(const char* key, int64_t value) override { json[key] = value; }
  void none(const char* key) override { json[key] = nullptr; }
  void unused(std::initializer_list<const char*>) override {}
  void words(const char* key, std::vector<std::string>& value, std::initializer_list<std::string_view>) override {
    if (!value.empty()) json[key] = value;
  }
  void integers(const char* key, std::vector<int64_t>& value) override { json[key] = value; }
  Presence presence(const char*) const override { return Presence::kAbsent; }
  bool reading() const override { return false; }
  void problem(std::string) override {}
  void warning(std::string) override {}
};

// Keys that transformers writes and no forward pass of ours depends on: about generation, labels, output and code.
const std::set<std::string> kWithoutEffect = [] {
  std::istringstream in(
      "_attn_implementation _attn_implementation_autoset _commit_hash _flash_attn_2_enabled _name_or_path _num_labels "
      "architectures attn_implementation auto_map bad_words_ids "
      "begin_suppress_tokens bos_token_id cache_implementation chunk_size_feed_forward classifier_dropout "
      "cls_token_id decoder_start_token_id directionality diversity_penalty do_sample dtype early_stopping "
      "encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty finetuning_task "
      "forced_bos_token_id forced_eos_token_id gradient_checkpointing id2label is_llama_config is_qwen2_config "
      "label2id language length_penalty "
      "mask_token_id max_length max_sequence_length min_length model_max_length model_type n_special name "
      "no_repeat_ngram_size num_beam_groups "
      "num_beams num_labels num_return_sequences output_attentions output_hidden_states output_past "
      "output_scores pad_token_id pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers "
      "pooler_size_per_head pooler_type predict_special_tokens prefix pretraining_tp problem_type "
      "remove_invalid_values "
      "reorder_and_upcast_attn repetition_penalty return_dict return_dict_in_generate sep_token_id "
      "summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj "
      "suppress_tokens task_specific_params temperature tf_legacy_loss tokenizer_class top_k top_p torch_dtype "
      "torchscript transformers.js_config transformers_version typical_p unk_token_id unsloth_fixed unsloth_version "
      "use_bfloat16 use_cache ");
  return std::set<std::string>(std::istream_iterator<std::string>(in), {});
}();

class HfReader : public HfKeys {
 public:
  // prefix: of keys in messages, "rope_scaling." within that object.
  HfReader(const JsonValue& json, std::vector<std::string>& problems, std::vector<std::string>& warnings,
           std::string prefix = "")
      : json_(json), problems_(problems), warnings_(warnings), prefix_(std::move(prefix)) {}

  void integer(const char* key, int64_t& value, int64_t low, int64_t high, int64_t standard) override {
    const JsonValue* v = given(key);
    if (v == nullptr) {
      if (standard == kRequired) problem(fmt::format("{}: missing", key));
      value = std::max(standard, low);
      return;
    }
    int64_t n = 0;
    if (v->kind != JsonValue::Kind::kNumber || !parse_int(v->text, n) || n < low || n > high) {
      problem(fmt::format("{}: expected a whole number {} to {}, found {}", key, low, high, shown(*v)));
      n = low;
    }
    value = n;
  }
  void number(const char* key, double& value, double low, double high, double standard) override {
    value = std::max(standard, low);
    const JsonValue* v = given(key);
    double x = 0;
    if (v == nullptr && standard == kRequired) problem(fmt::format("{}: missing", key));
    if (v == nullptr) return;
    if (v->kind != JsonValue::Kind::kNumber || !parse_double(v->text, x) || x < low || x > high)
      return problem(fmt::format("{}: expected a number {} to {}, found {}", key, low, high, shown(*v)));
    value = x;
  }
  void boolean(const char* key, bool& value, bool standard) override {
    value = standard;
    const JsonValue* v = given(key);
    if (v == nullptr) return;
    if (v->kind != JsonValue::Kind::kBool) problem(fmt::format("{}: expected true or false, found {}", key, shown(*v)));
    value = v->boolean;
  }
  void choice(std::initializer_list<const char*> keys, uint8_t& value, std::span<const char* const> names) override {
    const JsonValue* first = nullptr;
    for (const char* key : keys) {
      const JsonValue* v = given(key);
      if (v == nullptr || first != nullptr) continue;
      first = v;
      const auto it = std::find_if(names.begin(), names.end(), [&](const char* n) { return v->text == n; });
      undecided_ |= v->kind != JsonValue::Kind::kString || it == names.end();
      if (undecided_)
        problem(fmt::format("{}: \"{}\", expected {}", key, shown(*v), fmt::join(names, " or ")));
      else
        value = static_cast<uint8_t>(it - names.begin());
    }
  }
  bool object(const char* key, const std::function<void(HfKeys&)>& visit) override {
    const JsonValue* v = given(key);
    if (v == nullptr) return false;
    if (v->kind == JsonValue::Kind::kObject) {
      HfReader inner(*v, problems_, warnings_, prefix_ + key + ".");
      visit(inner);
      if (inner.undecided_) return true;  // which keys are known depends on the choice
      for (const std::string& name : inner.unknown()) unknown_.push_back(prefix_ + key + "." + name);
    } else {
      problem(fmt::format("{}: expected an object, found {}", key, shown(*v)));
    }
    return true;
  }
  void word(const char* key, std::initializer_list<std::string_view> values, const char* remark) override {
    const JsonValue* v = given(key);
    if (v == nullptr) return;
    if (v->kind != JsonValue::Kind::kString)
      problem(fmt::format("{}: expected a text, found {}", key, shown(*v)));
    else if (std::find(values.begin(), values.end(), v->text) == values.end())
      problem(fmt::format("{}: \"{}\", expected {}{}", key, v->text, *values.begin(), remark));
  }
  void only(const char* key, bool value) override {
    bool found = value;
    boolean(key, found, value);
    if (found != value) problem(fmt::format("{}: {}, expected {}", key, found, value));
  }
  void also(const char* key, int64_t) override { given(key); }
  void none(const char* key) override {
    if (const JsonValue* v = given(key)) problem(fmt::format("{}: {}, which is not built", key, shown(*v)));
  }
  void unused(std::initializer_list<const char*> keys) override {
    for (const char* key : keys) find(key);
  }
  void words(const char* key, std::vector<std::string>& value, std::initializer_list<std::string_view> known) override {
    const JsonValue* list = given(key);
    value.clear();
    if (list == nullptr) return;
    if (list->kind != JsonValue::Kind::kArray)
      return problem(fmt::format("{}: expected a list, found {}", key, shown(*list)));
    for (const JsonValue& v : list->items) {
      if (v.kind != JsonValue::Kind::kString || std::find(known.begin(), known.end(), v.text) == known.end())
        return value.clear(), problem(fmt::format("{}: {}, expected {}", key, shown(v), fmt::join(known, " or ")));
      value.push_back(v.text);
    }
  }
  void integers(const char* key, std::vector<int64_t>& value) override {
    const JsonValue* list = given(key);
    value.clear();
    for (size_t i = 0; list != nullptr && i < list->items.size(); ++i) {
      const JsonValue& v = list->items[i];
      if (int64_t n = 0; v.kind == JsonValue::Kind::kNumber && parse_int(v.text, n)) value.push_back(n);
    }
    if (list != nullptr && (list->kind != JsonValue::Kind::kArray || value.size() != list->items.size()))
      problem(fmt::format("{}: expected a list of whole numbers, found {}", key, shown(*list)));
  }
  Presence presence(const char* key) const override {
    const JsonValue* v = find(key);
    return v == nullptr ? Presence::kAbsent : v->kind == JsonValue::Kind::kNull ? Presence::kNull : Presence::kValue;
  }
  bool reading() const override { return true; }
  void problem(std::string text) override { problems_.push_back(prefix_ + text); }
  void warning(std::string text) override { warnings_.push_back(prefix_ + text); }

  // Keys, in nested objects too, that were not read and may change the model: those with another value than null, false
  // or an empty list.
  std::vector<std::string> unknown() const {
    std::vector<std::string> out = unknown_;
    for (size_t k = 0; k < json_.keys.size(); ++k) {
      const JsonValue& v = json_.items[k];
      const std::string& key = json_.keys[k];
      const bool nothing = v.kind == JsonValue::Kind::kBool ? !v.boolean : v.text.empty() && v.items.empty();
      if (!nothing && read_.count(key) == 0 && (!prefix_.empty() || kWithoutEffect.count(key) == 0)) out.push_back(key);
    }
    return out;
  }

 private:
  const JsonValue* find(const char* key) const {
    read_.insert(key);
    return json_.find(key);
  }
  const JsonValue* given(const char* key) const {
    const JsonValue* v = find(key);
    return v == nullptr || v->kind == JsonValue::Kind::kNull ? nullptr : v;
  }
  static std::string shown(const JsonValue& v) { return v.text.empty() ? kind_name(v.kind) : v.text.substr(0, 60); }
  const JsonValue& json_;
  std::vector<std::string>&problems_, &warnings_;
  const std::string prefix_;
  std::vector<std::string> unknown_;  // of nested objects
  bool undecided_ = false;            // a choice() has an unknown value
  mutable std::set<std::string, std::less<>> read_;
};

// Returns the family of model_type; the first family if the key is missing, as in its old files.
const Family& family_of_type(const JsonValue& json, const std::string& where) {
  const JsonValue* v = json.find("model_type");
  const bool given = v != nullptr && v->kind != JsonValue::Kind::kNull;
  if (!given && json.find("n_embd") != nullptr) return *families().front();
  std::string known;
  for (const Family* f : families()) {
    if (given && v->kind == JsonValue::Kind::kString && v->text == f->model_type) return *f;
    known += (known.empty() ? "" : " or ") + std::string(f->model_type);
  }
  fail(Exit::kDamaged, where, ": model_type: ", given ? cat('"', printable(v->text.substr(0, 60)), '"') : "missing",
       ", expected ", known, ": no other families are imported");
}

// Quantized weights do not have the config's shapes. Not to be ignored.
void require_unquantized(const JsonValue& json, const std::string& where) {
  for (const char* key : {"quantization_config", "compression_config", "quantization"}) {
    const JsonValue* v = json.find(key);
    if (v == nullptr || v->kind == JsonValue::Kind::kNull) continue;
    const JsonValue* method = v->find("quant_method");
    if (method == nullptr) method = v->find("mode");
    const std::string by = method != nullptr && !method->text.empty() ? method->text.substr(0, 60) : "";
    fail(Exit::kDamaged, where, ": ", key, ": the weights are quantized",
         by.empty() ? std::string() : " by " + printable(by),
         ", which is not read; give the folder that was quantized, or save the dequantized model in bf16 "
         "(transformers: model.dequantize(), then save_pretrained)");
  }
}

}  // namespace

std::string hf_config_json(const ModelConfig& m, int64_t end_of_text, const std::string& dtype) {
  const Family& family = family_of(m);
  HfWriter out;
  TransformerConfig c = m;
  c.kv_heads = c.groups(), c.head_dim = c.head_width();
  family.keys(out, c);
  out.json["architectures"] = {family.architecture};
  out.json["model_type"] = family.model_type;
  out.json["torch_dtype"] = dtype;
  out.json["bos_token_id"] = out.json["eos_token_id"] = nullptr;
  if (end_of_text >= 0) out.json["bos_token_id"] = out.json["eos_token_id"] = end_of_text;
  return out.json.dump(2) + "\n";
}

std::vector<std::string> lost_in_hf_config(const ModelConfig& m, const std::string& text) {
  Config ours, theirs;
  ours.model = m;
  static_cast<TransformerConfig&>(theirs.model) = parse_hf_config(text, "config.json", true).model;
  for (ModelConfig* c : {&ours.model, &theirs.model}) {
    c->kv_heads = c->groups(), c->head_dim = c->head_width();
    if (c->attn_scalar == 0) c->attn_scalar = static_cast<double>(c->head_dim);
    if (c->rope_local_theta == 0 && c->rope.kind == RopeKind::kDefault) c->rope_local_theta = c->rope_theta;
  }
  theirs.model.arch = m.arch, theirs.model.init = m.init, theirs.model.loss_chunk = m.loss_chunk;
  theirs.model.z_loss = m.z_loss, theirs.model.moe.balance = m.moe.balance,
  theirs.model.moe.bias_rate = m.moe.bias_rate, theirs.model.dropout = m.dropout,
  theirs.model.attn_dropout = m.attn_dropout;
  theirs.model.lora = m.lora, theirs.model.lora_base = m.lora_base;  // merged on export
  const std::vector<Option> a = list_options(ours), b = list_options(theirs);
  std::vector<std::string> out;
  for (size_t k = 0; k < a.size(); ++k)
    if (value_text(a[k]) != value_text(b[k]))
      out.push_back(fmt::format("{} {}, where Hugging Face's {} has {}", a[k].key(), value_text(a[k]),
                                family_of(m).name, value_text(b[k])));
  return out;
}

HfConfig parse_hf_config(const std::string& text, const std::string& where, bool ignore_unknown) {
  JsonValue json;
  try {
    json = parse_json(text, where);
  } catch (const Error& e) {
    const std::string kind = text.find('{') < 16 ? "" : other_kind(text.substr(0, kKindBytes));
    throw Error(kind.empty() ? e.what() : where + ": no JSON: it " + kind, Exit::kDamaged);
  }
  GT_REQUIRE(json.kind == JsonValue::Kind::kObject, Exit::kDamaged, where, ": expected an object, found ",
             kind_name(json.kind));
  require_unquantized(json, where);
  std::vector<std::string> problems;
  HfConfig out;
  const Family& family = family_of_type(json, where);
  HfReader in(json, problems, out.warnings);
  out.model.arch = family.name;
  static_cast<TransformerConfig&>(out.model) = family.defaults;
  family.keys(in, out.model);
  const JsonValue* eos = json.find("eos_token_id");
  if (eos != nullptr && eos->kind == JsonValue::Kind::kNumber)
    in.integer("eos_token_id", out.end_of_text, 0, 1 << 22, HfKeys::kRequired);
  if (json.find("auto_map") != nullptr)
    out.warnings.push_back(
        cat("auto_map: the folder's own code is not read; the model is that of ", family.model_type));
  for (const std::string& key : in.unknown()) {
    const std::string shown = printable(key.substr(0, 100));
    if (ignore_unknown)
      out.warnings.push_back(fmt::format("{}: not known, ignored", shown));
    else
      problems.push_back(fmt::format("{}: not known, and may change the model; --ignore-unknown ignores it", shown));
  }
  GT_REQUIRE(problems.empty(), Exit::kDamaged, where, ": no ", family.name,
             " model that can be imported:", fmt::format("\n  {}", fmt::join(problems, "\n  ")));
  return out;
}

std::vector<std::string> model_flags(const ModelConfig& m) {
  Config c;
  c.model = m;
  std::vector<std::string> out;
  for (const Option& o : list_options(c))
    if (const std::vector<std::string> words = value_words(o); o.section == "model" && !words.empty()) {
      out.push_back("--" + o.key());
      out.insert(out.end(), words.begin(), words.end());
    }
  return out;
}

}  // namespace gt
