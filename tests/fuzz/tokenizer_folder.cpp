#include "data/bpe/tokenizer_json.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/utf8.h"
#include "tests/data/byte_level_json.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {

using test::Json;
constexpr const char* kBlank = "\xE2\x96\x81";

// Encodes a protobuf bytes field.
std::string field(int number, const std::string& bytes) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
}

const std::vector<std::string>& pieces() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> out{"<unk>", "<s>", "</s>"};
    for (int b = 0; b < 256; ++b) out.push_back(byte_piece(static_cast<uint8_t>(b)));
    for (const char* text : {kBlank, "t", "h", "e", "th", "the", "\xE2\x96\x81the"}) out.emplace_back(text);
    return out;
  }();
  return all;
}

// A model of Llama's kind.
const std::string& model() {
  static const std::string bytes = [] {
    std::string out;
    float score = 0;
    for (const std::string& piece : pieces()) {
      const char type = piece == "<unk>" ? 2 : piece == "<s>" || piece == "</s>" ? 3 : piece.starts_with("<0x") ? 6 : 1;
      out += field(1, field(1, piece) + "\x15" + std::string(reinterpret_cast<const char*>(&score), 4) +
                          std::string{'\x18', type});
      score -= 1;
    }
    return out + field(2, std::string("\x18\x02\x98\x02\x01", 5)) +
           field(3, field(1, "identity") + std::string("\x18\x01\x20\x00", 4));
  }();
  return bytes;
}

// The parts of the input between zero bytes: tokenizer.json, tokenizer_config.json, special_tokens_map.json,
// added_tokens.json; empty ones are left out.
void run(std::string_view input) {
  static const std::string text = "the quick\nbrown \xEF\xBC\xA1 fox <s></s> the<|im_start|> the\xFF\x01 \xE2\x96\x81";
  std::vector<TokenizerFile> files{{"tokenizer.model", "fuzz/tokenizer.model", model()}};
  size_t at = 0;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}) {
    const size_t end = std::min(input.find('\0', at), input.size());
    if (end > at) files.push_back({name, std::string("fuzz/") + name, std::string(input.substr(at, end - at))});
    at = std::min(end + 1, input.size());
  }
  refused([&] {
    const Tokenizer t = Tokenizer::from_files(files);
    const std::vector<int32_t> ids = t.encode(text);
    for (const int32_t id : ids) GT_CHECK(id >= 0 && id < t.vocab() && !t.piece(id).empty());
    const std::string back = t.decode(ids);
    GT_CHECK(utf8_valid_prefix(back) == back.size());
    GT_CHECK(t.open_tokens(ids) <= ids.size());
    for (const int32_t id : {t.unk(), t.bos(), t.eos(), t.pad(), t.eod(), t.empty_text()})
      GT_CHECK(id >= -1 && id < t.vocab());
    for (const auto* around : {&t.before_text(), &t.after_text()})
      for (const int32_t id : *around) GT_CHECK(id >= 0 && id < t.vocab() && t.text_bytes(id) == 0);
    GT_CHECK(t.vocab() >= static_cast<int64_t>(pieces().size()) && t.sha256().size() == 64);
  });
}

std::vector<std::string> seeds() {
  const std::string zero(1, '\0');
  Json vocab = Json::object();
  for (const std::string& piece : pieces()) vocab[piece] = vocab.size();
  const auto token = [](const char* text, size_t id) {
    return Json{{"id", id}, {"content", text}, {"special", true}, {"normalized", false}, {"rstrip", true}};
  };
  Json json = test::byte_level_json({});
  json["added_tokens"] = Json::array({token("<s>", 1), token("<|im_start|>", pieces().size())});
  json["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers", Json::array({Json{{"type", "Prepend"}, {"prepend", kBlank}},
                                   Json{{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kBlank}}})}};
  json["pre_tokenizer"] = nullptr;
  json["model"]["vocab"] = {{"the", 264}};
  Json metaspace = json;
  metaspace["normalizer"] = nullptr;
  metaspace["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", kBlank}, {"prepend_scheme", "first"}, {"split", false}};
  const std::string llama = R"({"tokenizer_class": "LlamaTokenizer", "legacy": false, "add_eos_token": true})";
  const std::string decoder =
      R"({"tokenizer_class": "LlamaTokenizer", "added_tokens_decoder": {"266": {"content": "<|im_start|>", "lstrip": true}}})";
  return {json.dump(),
          json.dump() + zero + llama,
          metaspace.dump() + zero + R"({"bos_token": "<s>", "add_bos_token": true})",
          zero + decoder,
          zero + zero + R"({"bos_token": {"content": "<s>"}})" + zero + R"({"<|im_start|>": 266, "<x>": 267})",
          zero + R"({"tokenizer_class": "GemmaTokenizer", "bos_token": "<s>"})"};
}

}  // namespace

Target tokenizer_folder() {
  return {"tokenizer_folder",
          run,
          seeds,
          {"\"<s>\"",
           "\"266\":",
           "266",
           "\"id\":",
           "null",
           "true",
           "false",
           "\"lstrip\":true",
           "\"normalized\":true",
           "\"single_word\":true",
           "\"add_bos_token\":true",
           "\"add_prefix_space\":true",
           "\"LlamaTokenizer\"",
           "\"content\":\"the\"",
           "-1",
           "18446744073709551615",
           "\xE2\x96\x81",
           "\"\"",
           "{",
           "[]"},
          3000};
}

}  // namespace gt::fuzz
