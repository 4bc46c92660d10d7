#include "data/tokenizer/folder_model.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "data/bpe/tokenizer_config.h"
#include "data/tokenizer/utf8.h"
#include "kernels/core/check.h"

namespace gt {
namespace {

using Json = nlohmann::json;
constexpr std::string_view kBlank = "\xE2\x96\x81";
constexpr size_t kMaxAdded = 65536, kMaxAddedText = 1024;

// The text as pieces are spelled. `before`: with a blank before it.
std::string spell(std::string_view text, bool before) {
  std::string out(before ? kBlank : "");
  for (const char c : text) c == ' ' ? out += kBlank : out += c;
  return out;
}

bool flag(const Json& j, const char* key, bool otherwise, const std::string& where) {
  const auto at = j.find(key);
  if (at == j.end() || at->is_null()) return otherwise;
  GT_REQUIRE(at->is_boolean(), Exit::kUsage, where, ": ", key, ": expected true or false, found a ", at->type_name());
  return at->get<bool>();
}

// A token of tokenizer_config.json: a string, or an object with its content.
AddedToken token_of(const Json& j, bool special, const std::string& where) {
  AddedToken t{.special = special};
  const Json* text = &j;
  if (j.is_object()) {
    GT_REQUIRE(j.contains("content"), Exit::kUsage, where, ": has no content");
    text = &j["content"];
    t.special = flag(j, "special", special, where);
    t.single_word = flag(j, "single_word", false, where);
    t.lstrip = flag(j, "lstrip", false, where);
    t.rstrip = flag(j, "rstrip", false, where);
    t.normalized = flag(j, "normalized", !t.special, where);
  }
  GT_REQUIRE(text->is_string(), Exit::kUsage, where, ": expected a token, found a ", text->type_name());
  t.text = text->get<std::string>();
  GT_REQUIRE(!t.text.empty() && t.text.size() <= kMaxAddedText, Exit::kUsage, where, ": expected a text of 1 to ",
             kMaxAddedText, " bytes, found ", t.text.size());
  return t;
}

// Added tokens of a folder without tokenizer.json, as transformers makes a fast tokenizer of it.
class ConfigTokens {
 public:
  ConfigTokens(const Json& config, const std::vector<std::string>& pieces, std::string where)
      : config_(config), where_(std::move(where)), model_pieces_(static_cast<int64_t>(pieces.size())) {
    for (size_t k = 0; k < pieces.size(); ++k) ids_.emplace(pieces[k], static_cast<int32_t>(k));
  }

  std::vector<AddedToken> read() {
    read_decoder();
    for (const auto& [key, value] : config_.items()) read_named(key, value);
    if (const ClassTokens* c = class_tokens(tokenizer_class(config_)))
      for (const auto& [key, text] :
           {std::pair("bos_token", c->bos), {"eos_token", c->eos}, {"unk_token", c->unk}, {"pad_token", c->pad}})
        if (!config_.contains(key) && *text != '\0' && ids_.count(text) != 0) add_named(Json(text), key);
    return std::move(tokens_);
  }

 private:
  void read_decoder() {
    const auto decoder = config_.find("added_tokens_decoder");
    if (decoder == config_.end() || !decoder->is_object()) return;
    GT_REQUIRE(decoder->size() <= kMaxAdded, Exit::kUsage, where_, ": added_tokens_decoder: expected at most ",
               kMaxAdded, " tokens, found ", decoder->size());
    std::map<int64_t, const Json*> by_id;
    for (const auto& [id, value] : decoder->items()) {
      const bool number = !id.empty() && id.size() < 10 && std::all_of(id.begin(), id.end(), ::isdigit);
      GT_REQUIRE(number, Exit::kUsage, where_, ": added_tokens_decoder: expected an id, found \"", id.substr(0, 100),
                 '"');
      by_id.emplace(std::stoll(id), &value);
    }
    int64_t next = model_pieces_;
    for (const auto& [id, value] : by_id) {
      AddedToken t = token_of(*value, false, cat(where_, ": added_tokens_decoder, ", id));
      const auto known = ids_.find(t.text);
      const int64_t expected = known != ids_.end() ? known->second : next;
      GT_REQUIRE(id == expected, Exit::kUsage, where_, ": \"", t.text, "\" has id ", id, ", expected ", expected,
                 known != ids_.end() ? ", its id in the model" : ", the next free one, which transformers gives it");
      if (known == ids_.end()) ids_.emplace(t.text, static_cast<int32_t>(next++));
      t.id = static_cast<int32_t>(id);
      add(std::move(t));
    }
  }
  void read_named(const std::string& key, const Json& value) {
    if (key.ends_with("_token") && (value.is_string() || (value.is_object() && value.contains("content"))))
      return add_named(value, key);
    if (key != "additional_special_tokens" && key != "extra_special_tokens") return;
    if (value.is_array() || value.is_object())
      for (const auto& [unused, token] : value.items()) add_named(token, key);
  }
  void add_named(const Json& value, const std::string& key) {
    AddedToken t = token_of(value, true, where_ + ": " + key);
    const auto known = ids_.find(t.text);
    GT_REQUIRE(known != ids_.end(), Exit::kUsage, where_, ": ", key, ": \"", t.text,
               "\" is neither a piece of the model nor an added token; transformers would add it");
    t.special = true;
    t.id = known->second;
    if (!value.is_object()) t.normalized = false;
    add(std::move(t));
  }
  void add(AddedToken t) {
    if (added_.insert(t.id).second) tokens_.push_back(std::move(t));
  }

  const Json& config_;
  const std::string where_;
  const int64_t model_pieces_;
  std::map<std::string, int32_t> ids_;
  std::vector<AddedToken> tokens_;
  std::unordered_set<int32_t> added_;  // their ids
};

// The rule of transformers' converter of the class; kModel for classes that are not known.
BlankRule rule_of_class(const Json& config, const std::string& where) {
  const std::string name = tokenizer_class(config);
  if (name == "GemmaTokenizer") return BlankRule::kNone;
  if (name != "LlamaTokenizer") return BlankRule::kModel;
  if (!flag(config, "add_prefix_space", true, where)) return BlankRule::kNone;
  return flag(config, "legacy", true, where) ? BlankRule::kEvery : BlankRule::kFirst;
}

}  // namespace

FolderModel::FolderModel(const std::string& model, const std::string& sha256, const std::string& name,
                         const std::string& json, const std::string& config)
    : inner_(new SentencePiece(model, sha256, name)) {
  for (int64_t id = 0; id < inner_->vocab(); ++id) pieces_.push_back(inner_->piece(static_cast<int32_t>(id)));
  const auto own = static_cast<int32_t>(pieces_.size());
  std::string unknown;
  const TokenizerJson t = read(json, config, name, &unknown);
  rule_ = t.blanks;
  for (const AddedToken& a : t.added)
    if (a.id >= own) added_names_ += cat(a.id, ' ', a.text, '\n');
  GT_REQUIRE(unknown.empty() || added_names_.empty(), Exit::kUsage, name,
             ": tokenizer.json beside it adds tokens, and ",
             "its normalizer or pre-tokenizer is not supported: expected a kind of Llama, Mistral or Gemma, found ",
             unknown, "; remove tokenizer.json to read tokenizer.model alone");
  const bool same = std::all_of(t.added.begin(), t.added.end(), [&](const AddedToken& a) {
    return a.id < own && inner_->kind(a.id) == PieceKind::kUserDefined && !a.single_word && !a.lstrip && !a.rstrip;
  });
  special_ = special_ids(t, config, name);
  const SpecialIds of_model = inner_->special();
  const Json names = config.empty() ? Json::object() : parse_tokenizer_config(config, name);
  for (const auto& [key, id] :
       {std::pair("bos_token", &SpecialIds::bos), {"eos_token", &SpecialIds::eos}, {"pad_token", &SpecialIds::pad}})
    if (special_.*id < 0 && !names.contains(key)) special_.*id = of_model.*id;
  if (special_.unk < 0) special_.unk = of_model.unk;
  if (special_.eod < 0) special_.eod = of_model.eod;
  if (special_.start < 0) special_.start = special_.eod;
  adds_nothing_ =
      (same || !unknown.empty()) && rule_ == BlankRule::kModel && special_.before.empty() && special_.after.empty();
  if (rule_ != BlankRule::kModel) inner_ = std::make_unique<SentencePiece>(model, sha256, name, true);
  add_tokens(t);
}

TokenizerJson FolderModel::read(const std::string& json, const std::string& config, const std::string& name,
                                std::string* unknown) const {
  const std::string where = name + ": tokenizer_config.json beside it";
  const Json names = config.empty() ? Json::object() : parse_tokenizer_config(config, where);
  const BlankRule of_class = rule_of_class(names, where);
  if (!json.empty()) {
    std::vector<bool> normal;
    for (int32_t id = 0; id < static_cast<int32_t>(pieces_.size()); ++id)
      normal.push_back(inner_->kind(id) == PieceKind::kNormal);
    TokenizerJson t = read_tokens_beside(json, pieces_, normal, name + ": tokenizer.json beside it", unknown);
    // Llama's class makes the tokenizer from tokenizer.model again where add_prefix_space is set.
    const auto given = names.find("add_prefix_space");
    if (tokenizer_class(names) == "LlamaTokenizer" && given != names.end() && !given->is_null())
      t.blanks = of_class, unknown->clear();
    return t;
  }
  TokenizerJson t;
  t.pieces = pieces_;
  t.added = ConfigTokens(names, pieces_, where).read();
  t.blanks = of_class;
  return t;
}

void FolderModel::add_tokens(const TokenizerJson& t) {
  std::vector<AddedToken> raw, normalized;
  is_added_.resize(pieces_.size());
  for (const AddedToken& a : t.added) {
    const auto k = static_cast<size_t>(a.id);
    if (k >= pieces_.size()) {
      pieces_.resize(k + 1);
      is_added_.resize(k + 1);
    }
    pieces_[k] = a.text;
    is_added_[k] = true;
    (a.normalized ? normalized : raw).push_back(a);
    if (a.normalized && by_normalizer()) normalized.back().text = spell(a.text, rule_ == BlankRule::kEvery);
  }
  raw_ = AddedTokens(std::move(raw));
  normalized_ = AddedTokens(std::move(normalized));
  strips_ = raw_.any_strips() || normalized_.any_strips();
}

int32_t FolderModel::id_of(const std::string& piece) const {
  if (const int32_t id = inner_->id_of(piece); id >= 0) return id;
  const auto at = std::find(pieces_.begin(), pieces_.end(), piece);
  return at == pieces_.end() || piece.empty() ? -1 : static_cast<int32_t>(at - pieces_.begin());
}

PieceKind FolderModel::kind(int32_t id) const { return is_added(id) ? PieceKind::kUserDefined : inner_->kind(id); }

int64_t FolderModel::text_bytes(int32_t id) const {
  return is_added(id) ? static_cast<int64_t>(pieces_[static_cast<size_t>(id)].size()) : inner_->text_bytes(id);
}

LineCuts FolderModel::line_cuts() const {
  return rule_ != BlankRule::kModel || raw_.any_has('\n') || normalized_.any_has('\n') || strips_ ? LineCuts::kNever
                                                                                                  : inner_->line_cuts();
}

void FolderModel::encode(std::string_view text, WordCache* cache, std::vector<int32_t>* out) const {
  std::string clean;
  if (utf8_valid_prefix(text) != text.size()) {
    append_valid_utf8(text, &clean);
    text = clean;
  }
  const auto token = [&](int32_t id) { out->push_back(id); };
  raw_.split(
      text,
      [&](std::string_view part) {
        if (by_normalizer()) {
          const std::string spelled = spell(part, rule_ == BlankRule::kEvery);
          normalized_.split(
              spelled, [&](std::string_view p) { inner_->encode(p, cache, out); }, token);
        } else {
          normalized_.split(
              part, [&](std::string_view p) { encode_between(p, p.data() == text.data(), cache, out); }, token);
        }
      },
      token);
}

// `first`: it begins the whole text.
void FolderModel::encode_between(std::string_view text, bool first, WordCache* cache, std::vector<int32_t>* out) const {
  if (rule_ == BlankRule::kModel) return inner_->encode(text, cache, out);
  const bool before =
      (first || rule_ == BlankRule::kUnlessBlank) && !text.starts_with(' ') && !text.starts_with(kBlank);
  inner_->encode(spell(text, before), cache, out);
}

std::string FolderModel::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (size_t at = 0, end = 0; at < ids.size(); at = end) {
    if (is_added(ids[at])) {
      text += pieces_[static_cast<size_t>(ids[at])];
      end = at + 1;
      continue;
    }
    while (end < ids.size() && !is_added(ids[end])) ++end;
    text += inner_->decode(ids.subspan(at, end - at));
  }
  const bool prefix = rule_ != BlankRule::kModel && rule_ != BlankRule::kNone;
  return prefix && text.starts_with(' ') ? text.substr(1) : text;
}

size_t FolderModel::open_tokens(std::span<const int32_t> ids) const {
  size_t begin = ids.size();
  while (begin > 0 && ids.size() - begin < 4 && !is_added(ids[begin - 1])) --begin;
  return inner_->open_tokens(ids.subspan(begin));
}

}  // namespace gt
