#include "data/bpe/tokenizer_json.h"

#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/utf8.h"
#include "tests/data/byte_level_json.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {

using test::Json;

std::string without_vocab(Json j) {
  j["model"]["vocab"] = {{"@", 0}};
  return j.dump();
}

void run(std::string_view input) {
  static const std::string text =
      "the quick\r\nbrown \xEF\xBC\xA1 fox's   12345 e\xCC\x81 \xF0\x9F\x98\x80 <|endoftext|>aaaa\t/\xFF\x01" +
      std::string(300, ' ') + std::string(300, 'a');
  // The bytes before the first zero byte are the tokenizer, those after it its tokenizer_config.json.
  const size_t end = std::min(input.find('\0'), input.size());
  const std::string config(input.substr(std::min(end + 1, input.size())));
  refused([&] {
    const Tokenizer t = Tokenizer::from_bytes(test::with_whole_vocab(input.substr(0, end)), "fuzz.json", config);
    const std::vector<int32_t> ids = t.encode(text);
    for (const int32_t id : ids) GT_CHECK(id >= 0 && id < t.vocab() && !t.piece(id).empty());
    const std::string back = t.decode(ids);
    GT_CHECK(utf8_valid_prefix(back) == back.size());
    GT_CHECK(t.open_tokens(ids) <= ids.size());
    std::string clean;
    append_valid_utf8(text, &clean);
    if (t.lossless()) GT_CHECK(back == clean);
    for (const int32_t id : {t.unk(), t.bos(), t.eos(), t.pad(), t.eod()}) GT_CHECK(id >= -1 && id < t.vocab());
  });
}

std::vector<std::string> seeds() {
  Json qwen = test::byte_level_json(), llama = test::byte_level_json();
  qwen["normalizer"] = {{"type", "NFC"}};
  qwen["pre_tokenizer"] = test::split_and_bytes(R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|\s*[\r\n]+|\s+(?!\S)|\s+)");
  llama["pre_tokenizer"] = test::split_and_bytes(test::kLlama3Pattern);
  llama["model"]["ignore_merges"] = true;
  llama["model"]["merges"] = Json::array({Json::array({"t", "h"}), Json::array({"th", "e"})});
  llama["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", Json::array({Json{{"SpecialToken", {{"id", "<|endoftext|>"}, {"type_id", 0}}}},
                              Json{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}})},
      {"pair", Json::array()},
      {"special_tokens",
       {{"<|endoftext|>", {{"id", "<|endoftext|>"}, {"ids", {260}}, {"tokens", {"<|endoftext|>"}}}}}}};
  Json fallback = test::byte_level_json({});  // of a SentencePiece model
  Json pieces{{"<unk>", 256}, {"a", 257}, {"t", 258}, {"h", 259}, {"th", 260}, {"\xE2\x96\x81", 261}};
  for (int b = 0; b < 256; ++b) pieces[byte_piece(static_cast<uint8_t>(b))] = b;
  fallback["model"]["vocab"] = pieces;
  fallback["model"]["merges"] = {"t h"};
  fallback["model"]["byte_fallback"] = true;
  fallback["added_tokens"][0]["id"] = 262;
  const Json blanks{{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\xE2\x96\x81"}};
  fallback["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers", Json::array({Json{{"type", "Prepend"}, {"prepend", "\xE2\x96\x81"}}, blanks})}};
  fallback["pre_tokenizer"] = nullptr;
  Json bert = test::byte_level_json({});
  bert["added_tokens"][0]["id"] = 1;
  bert["normalizer"] = {
      {"type", "BertNormalizer"}, {"clean_text", true}, {"strip_accents", nullptr}, {"lowercase", true}};
  bert["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
  bert["decoder"] = {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}};
  bert["model"] = {{"type", "WordPiece"},
                   {"unk_token", "[UNK]"},
                   {"max_input_chars_per_word", 100},
                   {"vocab", {{"[UNK]", 0}, {"<|endoftext|>", 1}, {"the", 2}, {"a", 3}, {"##a", 4}, {"quick", 5}}}};
  Json unigram = test::byte_level_json({});
  unigram["added_tokens"][0]["id"] = 4;
  unigram["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers", Json::array({Json{{"type", "Nmt"}}, Json{{"type", "NFKC"}},
                                   Json{{"type", "Precompiled"}, {"precompiled_charsmap", ""}},
                                   Json{{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", " "}}})}};
  unigram["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       Json::array({Json{{"type", "WhitespaceSplit"}},
                    Json{{"type", "Metaspace"}, {"replacement", "\xE2\x96\x81"}, {"prepend_scheme", "first"}}})}};
  unigram["decoder"] = {{"type", "Metaspace"}, {"replacement", "\xE2\x96\x81"}, {"prepend_scheme", "first"}};
  unigram["model"] = {{"type", "Unigram"},
                      {"unk_id", 0},
                      {"vocab", Json::array({Json::array({"<unk>", 0.0}), Json::array({"\xE2\x96\x81the", -3.5}),
                                             Json::array({"a", -2e0}), Json::array({"aa", -1.25})})}};
  Json roberta = test::byte_level_json();
  roberta["normalizer"] = {{"type", "Sequence"},
                           {"normalizers", Json::array({Json{{"type", "Strip"}, {"strip_left", true}},
                                                        Json{{"type", "Lowercase"}}, Json{{"type", "StripAccents"}}})}};
  roberta["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       Json::array({Json{{"type", "Punctuation"}, {"behavior", "MergedWithNext"}},
                    Json{{"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "Contiguous"}},
                    Json{{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", true}}})}};
  const std::string config = R"({"eos_token": {"content": "<|endoftext|>"}, "add_prefix_space": false})";
  return {test::byte_level_json().dump(),
          without_vocab(test::byte_level_json()),
          fallback.dump(),
          bert.dump(),
          bert.dump() + std::string(1, '\0') + R"({"tokenizer_class": "BertTokenizer", "do_lower_case": true})",
          unigram.dump(),
          without_vocab(roberta),
          without_vocab(qwen) + std::string(1, '\0') + config,
          without_vocab(llama) + std::string(1, '\0') + config,
          "{\"model\":" + std::string(50000, '[') + std::string(50000, ']')};
}

}  // namespace

Target tokenizer_json() {
  return {"tokenizer_json",
          run,
          seeds,
          {"\"vocab\":{",  "\"merges\":[",
           "\"Regex\":\"", "(?:a|aa)+",
           "{1000}",       "\\\\p{L}+",
           "[^\\\\s]",     "null",
           "true",         "\"a a\",",
           "\"Removed\"",  "\"type\":\"Sequence\"",
           "-1",           "18446744073709551615",
           "1e400",        "\\ud800",
           "\"\"",         "\"MergedWithNext\"",
           "\"first\"",    "\"Replace\"",
           "\"NFKD\"",     "\"Whitespace\"",
           "\"Unigram\"",  "\"WordPiece\""},
          20000};
}

}  // namespace gt::fuzz
