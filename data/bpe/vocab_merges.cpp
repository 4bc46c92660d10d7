#include "data/bpe/vocab_merges.h"

#include <algorithm>

#include "data/bpe/tokenizer_config.h"
#include "data/bpe/tokenizer_text.h"
#include "data/tokenizer/utf8.h"
#include "kernels/core/check.h"
#include "kernels/core/file_kind.h"
#include "kernels/core/json.h"

namespace gt {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kEnd = "<|endoftext|>";

// Returns the lines of merges.txt behind its first as a JSON array. transformers drops the first and the last line
// unseen, so both must be there.
std::string merges_array(std::string_view text, const std::string& where) {
  GT_REQUIRE(text.starts_with("#version"), Exit::kUsage, where, ": merges.txt beside it: expected the first line ",
             "\"#version: 0.2\", found \"", text.substr(0, std::min<size_t>(text.find('\n'), 100)), "\"");
  GT_REQUIRE(text.ends_with('\n'), Exit::kUsage, where, ": merges.txt beside it: expected a newline behind the last ",
             "merge, without which transformers leaves it out");
  GT_REQUIRE(utf8_valid_prefix(text) == text.size(), Exit::kUsage, where, ": merges.txt beside it: byte ",
             utf8_valid_prefix(text), " is no UTF-8");
  std::string out = "[";
  for (size_t begin = text.find('\n') + 1, end = 0; begin < text.size(); begin = end + 1) {
    end = text.find('\n', begin);
    out += (out.size() > 1 ? "," : "") + Json(text.substr(begin, end - begin)).dump();
  }
  return out + "]";
}

// The id of <|endoftext|> in the vocabulary, or the next one.
int64_t end_id(const std::string& model, const std::string& where) {
  const TokenizerText t = parse_tokenizer_text("{\"model\":" + model + "}", where);
  const auto at = std::find_if(t.vocab.begin(), t.vocab.end(), [](const auto& p) { return p.first == kEnd; });
  return at == t.vocab.end() ? static_cast<int64_t>(t.vocab.size()) : at->second;
}

}  // namespace

std::string tokenizer_json_of(std::string_view vocab, std::string_view merges, const std::string& where) {
  const size_t first = vocab.find_first_not_of(" \t\r\n");
  const bool object = first != std::string_view::npos && vocab[first] == '{';
  const std::string kind = object ? "" : other_kind(vocab.substr(0, kKindBytes));
  const bool valid = object && !parse_json_if_valid<Json>(vocab, {.bytes = SIZE_MAX}).is_discarded();
  GT_REQUIRE(valid, Exit::kUsage, where, ": expected a JSON object of pieces and ids, found broken or other text",
             kind.empty() ? "" : "; it ", kind);
  const std::string model = cat(R"({"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":"",)",
                                R"("end_of_word_suffix":"","fuse_unk":false,"byte_fallback":false,"vocab":)", vocab,
                                ",\"merges\":", merges_array(merges, where), "}");
  const Json bytes{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const Json end{
      {"id", end_id(model, where)}, {"content", kEnd}, {"single_word", false}, {"lstrip", false}, {"rstrip", false},
      {"normalized", false},        {"special", true}};
  return cat(R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)", end.dump(),
             R"(],"normalizer":null,"pre_tokenizer":)", bytes.dump(), R"(,"post_processor":null,"decoder":)",
             bytes.dump(), ",\"model\":", model, "}\n");
}

std::string gpt2_tokenizer_config(const std::string& config, const std::string& names, const std::string& where) {
  Json j = config.empty() ? Json::object() : Json(parse_tokenizer_config(config, where));
  if (!names.empty() && !j.contains("added_tokens_decoder"))
    j.update(Json(parse_tokenizer_config(names, where + ": special_tokens_map.json beside it")));
  const auto given = j.find("tokenizer_class");
  GT_REQUIRE(given == j.end() || *given == "GPT2Tokenizer" || *given == "GPT2TokenizerFast", Exit::kUsage, where,
             ": tokenizer_class: expected GPT2Tokenizer for vocab.json and merges.txt, found ",
             given->dump(-1, ' ', true).substr(0, 100), "; save it as tokenizer.json with transformers' AutoTokenizer");
  j["tokenizer_class"] = "GPT2Tokenizer";
  for (const char* key : {"bos_token", "eos_token", "unk_token"})
    if (!j.contains(key)) j[key] = kEnd;
  return j.dump(2) + "\n";
}

}  // namespace gt
