#include "data/bpe/tokenizer_config.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "data/tokenizer/tokenizer_files.h"
#include "kernels/core/check.h"
#include "kernels/core/json.h"
#include "kernels/core/json_field.h"

namespace gt {
namespace {

using Json = nlohmann::json;

class ConfigReader {
 public:
  ConfigReader(const TokenizerJson& t, const Json& config, std::string name)
      : tokenizer_(t), config_(config), name_(std::move(name)) {
    for (const AddedToken& a : t.added) added_.emplace(a.text, a.id);
  }

  // Returns the id of the token under `key`: a string, or an object with its content. -1: none.
  int32_t token(const char* key) const {
    const auto at = config_.find(key);
    if (at == config_.end() || at->is_null()) return -1;
    return token_id(*at, key);
  }
  // The same; if the key is missing, that of the class.
  int32_t token_or(const char* key, const char* otherwise) const {
    if (config_.contains(key)) return token(key);
    const auto at = added_.find(otherwise);
    return at == added_.end() ? -1 : at->second;
  }
  // Returns -1 where the key is missing or null.
  int flag(const char* key) const {
    const auto at = config_.find(key);
    if (at == config_.end() || at->is_null()) return -1;
    GT_REQUIRE(at->is_boolean(), Exit::kUsage, name_, ": ", key, ": expected true or false, found a ", at->type_name());
    return at->get<bool>() ? 1 : 0;
  }
  const std::string& name() const { return name_; }

  void require_no_more_tokens() const {
    for (const char* key : {"additional_special_tokens", "extra_special_tokens"})
      if (const auto at = config_.find(key); at != config_.end() && (at->is_array() || at->is_object()))
        for (const auto& [unused, value] : at->items()) token_id(value, key);
    const auto decoder = config_.find("added_tokens_decoder");
    if (decoder == config_.end() || !decoder->is_object()) return;
    for (const auto& [id, value] : decoder->items()) {
      const int32_t found = token_id(value, "added_tokens_decoder");
      GT_REQUIRE(std::to_string(found) == id, Exit::kUsage, name_, ": added_tokens_decoder: expected token ", found,
                 " as in tokenizer.json, found ", id.substr(0, 100));
    }
  }

  void require_no_other_cuts() const {
    for (const char* key : {"add_prefix_space", "split_special_tokens"}) {
      if (key[0] == 'a' && tokenizer_.blanks != BlankRule::kByteLevel) continue;
      const auto at = config_.find(key);
      GT_REQUIRE(at == config_.end() || at->is_null() || *at == false, Exit::kUsage, name_, ": ", key,
                 ": expected false, found ", at->dump(-1, ' ', true).substr(0, 100), ", which is not supported");
    }
  }

 private:
  int32_t token_id(const Json& value, const char* key) const {
    const Json* text = &value;
    if (value.is_object()) {
      const auto content = value.find("content");
      GT_REQUIRE(content != value.end(), Exit::kUsage, name_, ": ", key, ": has no content");
      text = &*content;
    }
    GT_REQUIRE(text->is_string(), Exit::kUsage, name_, ": ", key, ": expected a token, found a ", text->type_name());
    const auto at = added_.find(text->get_ref<const std::string&>());
    const bool pair = name_.find("vocab.json: ") != std::string::npos;  // and merges.txt
    GT_REQUIRE(at != added_.end(), Exit::kUsage, name_, ": ", key, ": \"",
               text->get_ref<const std::string&>().substr(0, 100),
               pair ? "\": of vocab.json with merges.txt only <|endoftext|> is read as a token of its own; save the "
                      "folder as tokenizer.json with transformers' AutoTokenizer"
                    : "\" is not an added token of tokenizer.json; transformers would add it");
    return at->second;
  }

  const TokenizerJson& tokenizer_;
  const Json& config_;
  const std::string name_;
  std::unordered_map<std::string, int32_t> added_;
};

int32_t added_token(const TokenizerJson& t, const char* text) {
  const auto at = std::find_if(t.added.begin(), t.added.end(), [&](const AddedToken& a) { return a.text == text; });
  return at == t.added.end() ? -1 : at->id;
}

// Sets what stands before and after a text. `of_class`: a class whose flags replace the template; nullptr: none, and
// the flags have no effect in transformers. `template_holds`: the class has no default of its own.
void set_frame(const ConfigReader& c, const ClassTokens* of_class, bool template_holds, SpecialIds* s) {
  int bos = c.flag("add_bos_token"), eos = c.flag("add_eos_token");
  if (of_class == nullptr || (template_holds && bos < 0 && eos < 0)) return;
  if (bos < 0) bos = of_class->adds_bos ? 1 : 0;
  s->before.clear();
  s->after.clear();
  for (const auto& [flag, id, key] : {std::tuple(bos, s->bos, "bos_token"), std::tuple(eos, s->eos, "eos_token")})
    GT_REQUIRE(flag != 1 || id >= 0, Exit::kUsage, c.name(), ": add_", key, ": true, but there is no ", key,
               "; name it, or set it to false");
  if (bos == 1) s->before = {s->bos};
  if (eos == 1) s->after = {s->eos};
}

// Adds the special tokens that `value` under `key` names.
void collect_special(const std::string& key, const Json& value, std::unordered_set<std::string>* out) {
  if (value.is_string() && key.ends_with("_token")) out->insert(value.get<std::string>());
  if (value.is_object() && value.contains("content") && value["content"].is_string())
    out->insert(value["content"].get<std::string>());
  if (value.is_array() && key.ends_with("special_tokens"))
    for (const Json& v : value) collect_special("_token", v, out);
}

}  // namespace

Json parse_tokenizer_config(const std::string& text, const std::string& where) {
  Json j = parse_json<Json>(text, where, {.bytes = kMaxTokenizerConfig});
  GT_REQUIRE(j.is_object(), Exit::kUsage, where, ": expected an object, found a ", j.type_name());
  return j;
}

std::string merged_tokenizer_config(const std::string& config, const std::string& names, const std::string& added,
                                    const std::string& where) {
  Json j = config.empty() ? Json::object() : parse_tokenizer_config(config, where);
  if (j.contains("added_tokens_decoder") || (names.empty() && added.empty())) return config;
  if (!names.empty()) j.update(parse_tokenizer_config(names, where + ": special_tokens_map.json beside it"));
  if (!added.empty()) {
    const std::string from = where + ": added_tokens.json beside it";
    const Json tokens = parse_tokenizer_config(added, from);
    std::unordered_set<std::string> special;
    for (const auto& [key, value] : j.items()) collect_special(key, value, &special);
    Json decoder = Json::object();
    for (const auto& [text, id] : tokens.items()) {
      GT_REQUIRE(id.is_number_unsigned(), Exit::kUsage, from, ": \"", text.substr(0, 100), "\": expected an id, found ",
                 id.dump(-1, ' ', true).substr(0, 100));
      decoder[id.dump()] = {
          {"content", text}, {"special", special.count(text) != 0}, {"normalized", special.count(text) == 0}};
    }
    j["added_tokens_decoder"] = std::move(decoder);
  }
  return j.dump();
}

std::string tokenizer_class(const Json& config) {
  const auto at = config.find("tokenizer_class");
  if (at == config.end() || !at->is_string()) return "";
  std::string name = at->get<std::string>();
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  return name;
}

const ClassTokens* class_tokens(std::string_view tokenizer_class) {
  static constexpr std::array<ClassTokens, 5> kAll{
      {{"LlamaTokenizer", true, "<s>", "</s>", "<unk>", ""},
       {"CodeLlamaTokenizer", true, "<s>", "</s>", "<unk>", ""},
       {"GemmaTokenizer", true, "<bos>", "<eos>", "<unk>", "<pad>"},
       {"CohereTokenizer", true, "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<UNK>", ""},
       {"GPTNeoXTokenizer", false, "<|endoftext|>", "<|endoftext|>", "<|endoftext|>", ""}}};
  const auto at =
      std::find_if(kAll.begin(), kAll.end(), [&](const ClassTokens& c) { return c.name == tokenizer_class; });
  return at == kAll.end() ? nullptr : &*at;
}

namespace {

// The value of `key` in `j`, or `otherwise` where it is missing or null.
bool setting(const Json& j, const char* key, bool otherwise, const std::string& where) {
  const auto at = j.find(key);
  if (at == j.end() || at->is_null()) return otherwise;
  GT_REQUIRE(at->is_boolean(), Exit::kUsage, where, ": ", key, ": expected true or false, found a ", at->type_name());
  return at->get<bool>();
}

void require_same(bool in_config, bool in_file, const char* key, const std::string& where) {
  GT_REQUIRE(in_config == in_file, Exit::kUsage, where, ": ", key, ": ", in_config ? "true" : "false",
             " (where it is missing, its class's default), in tokenizer.json ", in_file ? "true" : "false",
             "; transformers follows this one: set it to that of tokenizer.json, with which the model was trained");
}

}  // namespace

void require_same_pipeline(const TokenizerJson& t, int prefix_space, const std::string& config,
                           const std::string& name) {
  if (config.empty()) return;
  const std::string where = name + ": tokenizer_config.json beside it";
  const Json j = parse_tokenizer_config(config, where);
  const std::string of_class = tokenizer_class(j);
  const bool blank_class = of_class == "GPT2Tokenizer" || of_class == "RobertaTokenizer" ||
                           of_class == "BartTokenizer" || of_class == "LongformerTokenizer";
  if (prefix_space >= 0 && (j.contains("add_prefix_space") || blank_class))
    require_same(setting(j, "add_prefix_space", blank_class ? false : prefix_space == 1, where), prefix_space == 1,
                 "add_prefix_space", where);
  const auto normalizer = t.parts->find("normalizer");
  if (normalizer == t.parts->end() || !normalizer->is_object() || normalizer->value("type", Json()) != "BertNormalizer")
    return;
  const bool bert = of_class == "BertTokenizer" || of_class == "DistilBertTokenizer" ||
                    of_class == "ElectraTokenizer" || of_class == "MobileBertTokenizer";
  const auto of_file = [&](const char* key, bool otherwise) { return setting(*normalizer, key, otherwise, name); };
  const bool lower = of_file("lowercase", true), chinese = of_file("handle_chinese_chars", true);
  const bool in_config = setting(j, "do_lower_case", bert ? true : lower, where);
  require_same(in_config, lower, "do_lower_case", where);
  require_same(setting(j, "tokenize_chinese_chars", bert ? true : chinese, where), chinese, "tokenize_chinese_chars",
               where);
  if (bert || j.contains("strip_accents"))
    require_same(setting(j, "strip_accents", in_config, where), of_file("strip_accents", lower), "strip_accents",
                 where);
}

SpecialIds special_ids(const TokenizerJson& t, const std::string& config, const std::string& name) {
  SpecialIds s;
  s.unk = t.unk;
  s.before = t.before;
  s.after = t.after;
  if (!config.empty()) {
    const std::string where = name + ": tokenizer_config.json beside it";
    const Json j = parse_tokenizer_config(config, where);
    const ConfigReader c(t, j, where);
    c.require_no_more_tokens();
    c.require_no_other_cuts();
    const ClassTokens* of_class = class_tokens(tokenizer_class(j));
    s.bos = of_class != nullptr ? c.token_or("bos_token", of_class->bos) : c.token("bos_token");
    s.eos = of_class != nullptr ? c.token_or("eos_token", of_class->eos) : c.token("eos_token");
    s.pad = c.token("pad_token");
    if (const int32_t unk = c.token("unk_token"); s.unk < 0) s.unk = unk;
    set_frame(c, of_class, j.contains("backend"), &s);  // transformers 5 names it, and follows the template
    s.start = s.bos;
  }
  if (s.bos < 0 && !t.before.empty()) s.bos = t.before.front();
  if (s.eos < 0 && !t.after.empty()) s.eos = t.after.back();
  s.eod = added_token(t, "<|endoftext|>");
  if (s.eod < 0) s.eod = s.eos;
  if (s.eod < 0) s.eod = added_token(t, "<|end_of_text|>");
  if (!s.before.empty()) s.start = s.before.front();
  if (s.start < 0) s.start = s.eod;
  return s;
}

}  // namespace gt
