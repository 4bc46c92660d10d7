#include "data/bpe/tokenizer_config.h"

#include <algorithm>
#include <unordered_map>

#include "data/prepare/shallow_json.h"
#include "data/tokenizer/tokenizer_files.h"
#include "kernels/core/check.h"

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
    GT_REQUIRE(at != added_.end(), Exit::kUsage, name_, ": ", key, ": \"",
               text->get_ref<const std::string&>().substr(0, 100),
               "\" is not an added token of tokenizer.json; transformers would add it");
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

}  // namespace

Json parse_tokenizer_config(const std::string& text, const std::string& where) {
  GT_REQUIRE(static_cast<int64_t>(text.size()) <= kMaxTokenizerConfig, Exit::kUsage, where, ": expected at most ",
             kMaxTokenizerConfig, " bytes, found ", text.size());
  Json j;
  try {
    j = parse_shallow<Json>(text, where);
  } catch (const Json::parse_error& e) { fail(Exit::kUsage, where, " byte ", e.byte, ": broken JSON"); }
  GT_REQUIRE(j.is_object(), Exit::kUsage, where, ": expected an object, found a ", j.type_name());
  return j;
}

SpecialIds special_ids(const TokenizerJson& t, const std::string& config, const std::string& name) {
  SpecialIds s;
  s.unk = t.unk;
  if (!config.empty()) {
    const std::string where = name + ": tokenizer_config.json beside it";
    const Json j = parse_tokenizer_config(config, where);
    const ConfigReader c(t, j, where);
    c.require_no_more_tokens();
    c.require_no_other_cuts();
    s.bos = c.token("bos_token");
    s.eos = c.token("eos_token");
    s.pad = c.token("pad_token");
    if (const int32_t unk = c.token("unk_token"); s.unk < 0) s.unk = unk;
  }
  if (s.bos < 0 && !t.before.empty()) s.bos = t.before.front();
  if (s.eos < 0 && !t.after.empty()) s.eos = t.after.back();
  s.eod = added_token(t, "<|endoftext|>");
  if (s.eod < 0) s.eod = s.eos;
  if (s.eod < 0) s.eod = added_token(t, "<|end_of_text|>");
  return s;
}

}  // namespace gt
