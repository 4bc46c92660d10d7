#include "data/hf/tekken.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <vector>

#include "data/bpe/tokenizer_text.h"
#include "data/hf/json_fields.h"
#include "kernels/core/check.h"
#include "kernels/core/hash/base64.h"

namespace gt {
namespace {

using Json = nlohmann::ordered_json;
constexpr size_t kMaxTokenBytes = 256;
constexpr int64_t kMaxIds = 1 << 20, kMaxSquares = 500'000'000;  // as data/bpe/tiktoken.cpp

// Texts of the special tokens by id.
std::vector<std::string> special_tokens(const JsonFields& file, int64_t count) {
  std::vector<std::string> names(static_cast<size_t>(count));
  for (const nlohmann::json& j : file.list("special_tokens")) {
    const JsonFields f(j, file.where() + ": special_tokens");
    f.expect_keys({"rank", "token_str", "is_control"});
    f.get("rank");
    std::string& name = names[static_cast<size_t>(f.number("rank", 0, count - 1))];
    GT_REQUIRE(name.empty(), Exit::kUsage, f.where(), ": rank ", f.number("rank", 0, count - 1), " occurs twice");
    name = f.text("token_str");
    GT_REQUIRE(!name.empty(), Exit::kUsage, f.where(), ".token_str: expected a text, found none");
  }
  for (size_t k = 0; k < names.size(); ++k)
    if (names[k].empty()) names[k] = cat("<SPECIAL_", k, ">");
  return names;
}

// The bytes of the first `count` tokens by rank.
std::vector<std::string> ranked_tokens(const JsonFields& file, int64_t count) {
  const nlohmann::json& list = file.list("vocab");
  GT_REQUIRE(count > 0 && static_cast<uint64_t>(count) <= list.size(), Exit::kUsage, file.where(),
             ": vocab: expected at least default_vocab_size - default_num_special_tokens = ", count, " tokens, found ",
             list.size());
  std::vector<std::string> tokens;
  std::unordered_set<std::string> known;
  int64_t squares = 0;
  for (size_t k = 0; k < static_cast<size_t>(count); ++k) {
    const JsonFields f(list[k], cat(file.where(), ": vocab[", k, "]"));
    f.expect_keys({"rank", "token_bytes", "token_str"});
    GT_REQUIRE(f.get("rank") == k, Exit::kUsage, f.where(), ".rank: expected ", k, ", found ",
               f.get("rank").dump(-1, ' ', true).substr(0, 100));
    std::optional<std::string> bytes = decode_base64(f.text("token_bytes"));
    GT_REQUIRE(bytes.has_value() && !bytes->empty() && bytes->size() <= kMaxTokenBytes, Exit::kUsage, f.where(),
               ".token_bytes: expected the base64 of 1 to ", kMaxTokenBytes, " bytes, found \"",
               f.text("token_bytes").substr(0, 100), '"');
    squares += static_cast<int64_t>(bytes->size() * bytes->size());
    GT_REQUIRE(squares <= kMaxSquares, Exit::kUsage, f.where(), ": the tokens up to here are too long for a ",
               "vocabulary of this kind (sum of their squared sizes above ", kMaxSquares, "): it is broken or hostile");
    GT_REQUIRE(known.insert(*bytes).second, Exit::kUsage, f.where(), ".token_bytes: expected a new token, found one ",
               "of a lower rank");
    tokens.push_back(*std::move(bytes));
  }
  return tokens;
}

Json added_tokens(const std::vector<std::string>& names) {
  Json added = Json::array();
  for (size_t k = 0; k < names.size(); ++k)
    added.push_back({{"id", k},
                     {"content", names[k]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  return added;
}

// Every text begins with <s>, as mistral-common encodes it.
Json post_processor(const std::vector<std::string>& names) {
  const auto at = std::find(names.begin(), names.end(), "<s>");
  if (at == names.end()) return {};
  const Json bos{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, text{{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  return {{"type", "TemplateProcessing"},
          {"single", Json::array({bos, text})},
          {"pair", Json::array()},
          {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {at - names.begin()}}, {"tokens", {"<s>"}}}}}}};
}

}  // namespace

TiktokenFiles convert_tekken(std::string_view text, const std::string& where) {
  const TokenizerText parsed = parse_tokenizer_text(text, where);
  const JsonFields file(parsed.rest, where);
  const JsonFields config = file.object("config");
  config.get("default_vocab_size");
  config.get("default_num_special_tokens");
  const int64_t size = config.number("default_vocab_size", 0, kMaxIds),
                special = config.number("default_num_special_tokens", 0, size);
  const std::vector<std::string> names = special_tokens(file, special), tokens = ranked_tokens(file, size - special);
  const RankedPieces pieces = pieces_of_ranks(tokens, special, where);
  std::string vocab;
  for (size_t k = 0; k < names.size(); ++k) vocab += cat(Json(names[k]).dump(), ":", k, ",");
  const Json bytes{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const Json split{
      {"type", "Split"}, {"pattern", {{"Regex", config.text("pattern")}}}, {"behavior", "Isolated"}, {"invert", false}};
  const Json splitter{{"type", "Sequence"}, {"pretokenizers", Json::array({split, bytes})}};
  Json of_config{{"clean_up_tokenization_spaces", false}, {"tokenizer_class", "PreTrainedTokenizerFast"}};
  for (const auto& [key, name] :
       {std::pair("bos_token", "<s>"), {"eos_token", "</s>"}, {"unk_token", "<unk>"}, {"pad_token", "<pad>"}})
    if (std::find(names.begin(), names.end(), name) != names.end()) of_config[key] = name;
  return {cat(R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":)", added_tokens(names).dump(),
              ",\"normalizer\":null,\"pre_tokenizer\":", splitter.dump(),
              ",\"post_processor\":", post_processor(names).dump(), ",\"decoder\":", bytes.dump(),
              R"(,"model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,)",
              R"("end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"ignore_merges":true,"vocab":{)",
              vocab, pieces.vocab, "},\"merges\":[", pieces.merges, "]}}\n"),
          of_config.dump(2) + "\n"};
}

}  // namespace gt
