#include "data/hf/word_piece_vocab.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <vector>

#include "data/bpe/tokenizer_config.h"
#include "data/hf/json_fields.h"
#include "data/tokenizer/utf8.h"
#include "kernels/core/check.h"

namespace gt {
namespace {

using Json = nlohmann::ordered_json;
constexpr int64_t kMaxLines = 2'000'000;

// Special token under `key`, or that of the class.
std::string name_of(const nlohmann::json& config, const char* key, const char* otherwise, const std::string& where) {
  const auto at = config.find(key);
  if (at == config.end() || at->is_null()) return otherwise;
  const nlohmann::json& text = at->is_object() && at->contains("content") ? (*at)["content"] : *at;
  GT_REQUIRE(text.is_string(), Exit::kUsage, where, ": tokenizer_config.json beside it: ", key,
             ": expected a token, found a ", text.type_name());
  return text.get<std::string>();
}

Json template_of(const std::string& cls, int64_t cls_id, const std::string& sep, int64_t sep_id) {
  const auto special = [](const std::string& text) { return Json{{"SpecialToken", {{"id", text}, {"type_id", 0}}}}; };
  const auto token = [](const std::string& text, int64_t id) {
    return Json{{"id", text}, {"ids", {id}}, {"tokens", {text}}};
  };
  return {{"type", "TemplateProcessing"},
          {"single", Json::array({special(cls), Json{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}, special(sep)})},
          {"pair", Json::array()},
          {"special_tokens", {{cls, token(cls, cls_id)}, {sep, token(sep, sep_id)}}}};
}

using Lines = std::unordered_map<std::string, int64_t>;

// The "vocab" of the model. *ids: of all pieces.
std::string vocab_of(std::string_view text, const std::string& where, Lines* ids) {
  GT_REQUIRE(utf8_valid_prefix(text) == text.size(), Exit::kUsage, where, ": byte ", utf8_valid_prefix(text),
             " is no UTF-8");
  std::string vocab = "{";
  int64_t id = 0;
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end + 1, ++id) {
    end = std::min(text.find('\n', begin), text.size());
    std::string piece(text.substr(begin, end - begin));
    if (piece.ends_with('\r')) piece.pop_back();
    GT_REQUIRE(!piece.empty() && id < kMaxLines, Exit::kUsage, where, ": line ", id + 1, ": expected one of at most ",
               kMaxLines, " pieces, found ", piece.empty() ? "an empty line" : "more");
    vocab += cat(id > 0 ? "," : "", Json(piece).dump(), ":", id);
    GT_REQUIRE(ids->emplace(std::move(piece), id).second, Exit::kUsage, where, ": line ", id + 1,
               ": the piece occurs twice");
  }
  return vocab + "}";
}

}  // namespace

std::string word_piece_json(std::string_view vocab, const std::string& config, const std::string& where) {
  const std::string beside = where + ": tokenizer_config.json beside it";
  const nlohmann::json c = config.empty() ? nlohmann::json::object() : parse_tokenizer_config(config, beside);
  const std::string of_class = tokenizer_class(c);
  GT_REQUIRE(of_class.empty() || of_class == "BertTokenizer" || of_class == "DistilBertTokenizer" ||
                 of_class == "ElectraTokenizer" || of_class == "MobileBertTokenizer",
             Exit::kUsage, beside, ": tokenizer_class: expected BertTokenizer for vocab.txt, found \"",
             of_class.substr(0, 100), "\"; save it as tokenizer.json with transformers' AutoTokenizer");
  const JsonFields f(c, beside);
  Lines ids;
  const std::string pieces = vocab_of(vocab, where, &ids);
  Json added = Json::array();
  std::vector<std::pair<int64_t, std::string>> names;
  const std::pair<const char*, const char*> keys[] = {{"pad_token", "[PAD]"},
                                                      {"unk_token", "[UNK]"},
                                                      {"cls_token", "[CLS]"},
                                                      {"sep_token", "[SEP]"},
                                                      {"mask_token", "[MASK]"}};
  for (const auto& [key, otherwise] : keys) {
    const std::string name = name_of(c, key, otherwise, where);
    const auto at = ids.find(name);
    const bool needed = std::string_view(key) != "pad_token" && std::string_view(key) != "mask_token";
    GT_REQUIRE(at != ids.end() || !needed, Exit::kUsage, where, ": expected a line ", name, " (", key, "), found none");
    if (at != ids.end()) names.emplace_back(at->second, name);
  }
  std::sort(names.begin(), names.end());
  for (const auto& [id, name] : names)
    added.push_back({{"id", id},
                     {"content", name},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  const std::string unk = name_of(c, "unk_token", "[UNK]", where), cls = name_of(c, "cls_token", "[CLS]", where),
                    sep = name_of(c, "sep_token", "[SEP]", where);
  Json normalizer{{"type", "BertNormalizer"},
                  {"clean_text", true},
                  {"handle_chinese_chars", f.flag("tokenize_chinese_chars", true)},
                  {"strip_accents", nullptr},
                  {"lowercase", f.flag("do_lower_case", true)}};
  if (f.find("strip_accents") != nullptr) normalizer["strip_accents"] = f.flag("strip_accents", true);
  const Json decoder{{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}};
  return cat(R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":)", added.dump(),
             ",\"normalizer\":", normalizer.dump(), R"(,"pre_tokenizer":{"type":"BertPreTokenizer"},"post_processor":)",
             template_of(cls, ids.at(cls), sep, ids.at(sep)).dump(), ",\"decoder\":", decoder.dump(),
             R"(,"model":{"type":"WordPiece","unk_token":)", Json(unk).dump(),
             R"(,"continuing_subword_prefix":"##","max_input_chars_per_word":100,"vocab":)", pieces, "}}\n");
}

}  // namespace gt
