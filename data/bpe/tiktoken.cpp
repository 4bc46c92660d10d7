#include "data/bpe/tiktoken.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "data/bpe/byte_alphabet.h"
#include "data/tokenizer/tokenizer_files.h"
#include "kernels/core/check.h"
#include "kernels/core/hash/base64.h"

namespace gt {
namespace {

using Json = nlohmann::ordered_json;
using Names = std::vector<std::pair<int64_t, std::string>>;  // special tokens: id, text

constexpr size_t kMaxTokenBytes = 256;  // the longest in use: 128 blanks
// Sum of the squared sizes of all tokens, the cost of finding their merges; those in use have 1e7.
constexpr int64_t kMaxSquares = 500'000'000;

// Patterns of github.com/openai/tiktoken, tiktoken_ext/openai_public.py, and of the models' own tokenizers.
constexpr const char* kContractions = R"((?i:'s|'t|'re|'ve|'m|'ll|'d))";
constexpr const char* kRest = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::string words_and(const char* digits) { return cat(kContractions, R"(|[^\r\n\p{L}\p{N}]?\p{L}+|)", digits, kRest); }

// Llama 3.1's names; the reserved ones number the remaining ids.
Names llama3_names(int64_t first) {
  const std::vector<std::pair<int, const char*>> named{
      {0, "<|begin_of_text|>"},   {1, "<|end_of_text|>"},   {4, "<|finetune_right_pad_id|>"},
      {6, "<|start_header_id|>"}, {7, "<|end_header_id|>"}, {8, "<|eom_id|>"},
      {9, "<|eot_id|>"},          {10, "<|python_tag|>"}};
  Names names;
  int reserved = 0;
  for (int i = 0; i < 256; ++i) {
    const auto at = std::find_if(named.begin(), named.end(), [&](const auto& n) { return n.first == i; });
    names.emplace_back(first + i, at != named.end() ? at->second : cat("<|reserved_special_token_", reserved++, "|>"));
  }
  return names;
}

Names qwen_names(int64_t first) {
  Names names{{first, "<|endoftext|>"}, {first + 1, "<|im_start|>"}, {first + 2, "<|im_end|>"}};
  for (int i = 0; i < 205; ++i) names.emplace_back(first + 3 + i, cat("<|extra_", i, "|>"));
  return names;
}

struct Vocabulary {
  int64_t ranks;
  const char* name;
  std::string pattern;  // empty: GPT-2's
  bool nfc;
  Names special;
  const char *bos, *eos;
};

const std::vector<Vocabulary>& known() {
  constexpr const char* kEnd = "<|endoftext|>";
  static const std::vector<Vocabulary> all{
      {50256, "gpt2", "", false, {{50256, kEnd}}, kEnd, kEnd},
      {100256,
       "cl100k_base",
       words_and(R"(\p{N}{1,3})"),
       false,
       {{100257, kEnd},
        {100258, "<|fim_prefix|>"},
        {100259, "<|fim_middle|>"},
        {100260, "<|fim_suffix|>"},
        {100276, "<|endofprompt|>"}},
       kEnd,
       kEnd},
      {128000, "Llama 3", words_and(R"(\p{N}{1,3})"), false, llama3_names(128000), "<|begin_of_text|>",
       "<|end_of_text|>"},
      {151643, "Qwen", words_and(R"(\p{N})"), true, qwen_names(151643), kEnd, kEnd},
      {199998, "o200k_base", kO200k, false, {{199999, kEnd}, {200018, "<|endofprompt|>"}}, kEnd, kEnd}};
  return all;
}

const Vocabulary& vocabulary_of(size_t ranks, const std::string& where) {
  std::string names;
  for (const Vocabulary& v : known()) {
    if (v.ranks == static_cast<int64_t>(ranks)) return v;
    names += cat(names.empty() ? "" : ", ", v.ranks, " (", v.name, ")");
  }
  fail(Exit::kUsage, where, ": ", ranks, " tokens; expected the number of a vocabulary whose pattern is known: ", names,
       "; convert others to a tokenizer.json with transformers' TikTokenConverter");
}

// The token of a line whose rank is `rank`, or nullopt.
std::optional<std::string> token_of(std::string_view line, size_t rank) {
  const size_t blank = line.find(' ');
  if (blank == std::string_view::npos || line.substr(blank + 1) != std::to_string(rank)) return {};
  std::optional<std::string> token = decode_base64(line.substr(0, blank));
  return token && !token->empty() && token->size() <= kMaxTokenBytes ? token : std::nullopt;
}

using Ranks = std::unordered_map<std::string_view, int64_t>;

std::vector<std::string> tokens_of(std::string_view text, const std::string& where) {
  const auto most = static_cast<size_t>(known().back().ranks);
  std::vector<std::string> tokens;
  int64_t squares = 0;
  for (size_t begin = 0, end = 0; begin < text.size() && tokens.size() <= most; begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    std::optional<std::string> token = token_of(line, tokens.size());
    GT_REQUIRE(token.has_value(), Exit::kUsage, where, ": line ", tokens.size() + 1, ": expected the base64 of 1 to ",
               kMaxTokenBytes, " bytes, a blank and the rank ", tokens.size(), ", found ",
               Json(line.substr(0, 60)).dump(-1, ' ', true, Json::error_handler_t::replace));
    squares += static_cast<int64_t>(token->size() * token->size());
    GT_REQUIRE(squares <= kMaxSquares, Exit::kUsage, where, ": line ", tokens.size() + 1,
               ": the tokens up to here are too long for a vocabulary of this kind (sum of their squared sizes above ",
               kMaxSquares, "): it is broken or hostile");
    tokens.push_back(*std::move(token));
  }
  return tokens;
}

Ranks ranks_of(const std::vector<std::string>& tokens, const std::string& where) {
  Ranks ranks;
  for (size_t i = 0; i < tokens.size(); ++i)
    GT_REQUIRE(ranks.emplace(tokens[i], i).second, Exit::kUsage, where, ": line ", i + 1,
               ": expected a new token, found ", "that of line ", ranks.at(tokens[i]) + 1);
  return ranks;
}

std::string spelled(std::string_view bytes) {
  std::string out;
  for (const char b : bytes) out += letter_of(static_cast<uint8_t>(b));
  return out;
}

// Appends the pairs of tokens whose concatenation is `token`, lowest ranks first.
void add_merges(std::string_view token, const Ranks& ranks, std::string* out) {
  std::vector<std::pair<int64_t, int64_t>> pairs;
  std::vector<size_t> cuts;
  for (size_t k = 1; k < token.size(); ++k) {
    const auto left = ranks.find(token.substr(0, k)), right = ranks.find(token.substr(k));
    if (left != ranks.end() && right != ranks.end()) pairs.emplace_back(left->second, right->second), cuts.push_back(k);
  }
  std::vector<size_t> order(pairs.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return pairs[a] < pairs[b]; });
  for (const size_t i : order)
    *out += (out->empty() ? "" : ",") +
            Json(spelled(token.substr(0, cuts[i])) + ' ' + spelled(token.substr(cuts[i]))).dump();
}

Json pre_tokenizer(const Vocabulary& v) {
  const Json bytes{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", v.pattern.empty()}};
  if (v.pattern.empty()) return bytes;
  const Json split{{"type", "Split"}, {"pattern", {{"Regex", v.pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", Json::array({split, bytes})}};
}

Json added_tokens(const Vocabulary& v) {
  Json added = Json::array();
  for (const auto& [id, text] : v.special)
    added.push_back({{"id", id},
                     {"content", text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  return added;
}

}  // namespace

bool is_tiktoken(std::string_view beginning) {
  return token_of(beginning.substr(0, beginning.find('\n')), 0).has_value();
}

namespace {

// Llama 3: every text begins with BOS. Others have none.
Json post_processor(const Vocabulary& v) {
  const std::string bos = v.bos;
  if (bos == v.eos) return {};
  const auto at = std::find_if(v.special.begin(), v.special.end(), [&](const auto& s) { return s.second == bos; });
  GT_CHECK(at != v.special.end());
  const auto token = [&](int type) { return Json{{"SpecialToken", {{"id", bos}, {"type_id", type}}}}; };
  const auto sequence = [](const char* id, int type) { return Json{{"Sequence", {{"id", id}, {"type_id", type}}}}; };
  return {{"type", "TemplateProcessing"},
          {"single", Json::array({token(0), sequence("A", 0)})},
          {"pair", Json::array({token(0), sequence("A", 0), token(1), sequence("B", 1)})},
          {"special_tokens", {{bos, {{"id", bos}, {"ids", {at->first}}, {"tokens", {bos}}}}}}};
}

}  // namespace

RankedPieces pieces_of_ranks(const std::vector<std::string>& tokens, int64_t first, const std::string& where) {
  const Ranks ranks = ranks_of(tokens, where);
  RankedPieces out;
  auto& [vocab, merges] = out;
  for (size_t i = 0; i < tokens.size(); ++i) {
    vocab += cat(i > 0 ? "," : "", Json(spelled(tokens[i])).dump(), ":", first + static_cast<int64_t>(i));
    add_merges(tokens[i], ranks, &merges);
    GT_REQUIRE(static_cast<int64_t>(merges.size()) <= kMaxTokenizerFile, Exit::kUsage, where, ": line ", i + 1,
               ": the merges up to here take more than ", kMaxTokenizerFile, " bytes: it is broken or hostile");
  }
  return out;
}

TiktokenFiles convert_tiktoken(std::string_view text, const std::string& where) {
  const std::vector<std::string> tokens = tokens_of(text, where);
  const Vocabulary& v = vocabulary_of(tokens.size(), where);
  auto [vocab, merges] = pieces_of_ranks(tokens, 0, where);
  for (const auto& [id, name] : v.special) vocab += cat(",", Json(name).dump(), ":", id);  // their ids may leave gaps
  const Json nfc = v.nfc ? Json{{"type", "NFC"}} : Json();
  const Json decoder{{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
  const Json config{{"bos_token", v.bos},
                    {"clean_up_tokenization_spaces", false},
                    {"eos_token", v.eos},
                    {"tokenizer_class", "PreTrainedTokenizerFast"}};
  return {cat(R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":)", added_tokens(v).dump(),
              ",\"normalizer\":", nfc.dump(), ",\"pre_tokenizer\":", pre_tokenizer(v).dump(), R"(,"post_processor":)",
              post_processor(v).dump(), R"(,"decoder":)", decoder.dump(),
              R"(,"model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,)",
              R"("end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"ignore_merges":true,"vocab":{)",
              vocab, "},\"merges\":[", merges, "]}}\n"),
          config.dump(2) + "\n"};
}

}  // namespace gt
