// tiktoken's files of ranks. Ids are compared with tiktoken's own in tests/launch/models/tokenizer_json_test.cpp.
#include "data/bpe/tiktoken.h"

#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_files.h"
#include "kernels/core/hash/base64.h"
#include "tests/data/support.h"

using namespace gt;
using namespace gt::test;

namespace {

constexpr int kGpt2 = 50256, kLlama3 = 128000;

// The bytes, then `tokens`, then tokens that no text contains, up to `count`.
std::string ranks(std::vector<std::string> tokens, int count = kGpt2) {
  std::vector<std::string> all;
  for (int b = 0; b < 256; ++b) all.emplace_back(1, static_cast<char>(b));
  for (std::string& t : tokens) all.push_back(std::move(t));
  for (int k = 0; static_cast<int>(all.size()) < count; ++k)
    all.push_back({'\xFF', '\xFF', static_cast<char>(k >> 16), static_cast<char>(k >> 8), static_cast<char>(k)});
  std::string text;
  for (size_t i = 0; i < all.size(); ++i) text += encode_base64(all[i]) + ' ' + std::to_string(i) + '\n';
  return text;
}

}  // namespace

TEST_CASE("a file of ranks gives tiktoken's ids and keeps its tokens when stored as tokenizer.json") {
  TempDir dir;
  // " them" is a whole word without merges that lead to it.
  write_file(dir / "gpt2.tiktoken", ranks({"th", "the", " the", " them"}));
  const Tokenizer t = Tokenizer::load(dir / "gpt2.tiktoken");
  CHECK(t.vocab() == kGpt2 + 1);
  CHECK(t.encode("the the them<|endoftext|>t") == std::vector<int32_t>{257, 258, 259, kGpt2, 't'});
  CHECK(t.decode(t.encode("the caf\xC3\xA9 \xF0\x9F\x98\x80")) == "the caf\xC3\xA9 \xF0\x9F\x98\x80");
  CHECK((t.eod() == kGpt2 && t.eos() == kGpt2 && t.bos() == kGpt2));
  const std::vector<TokenizerFile> files = tokenizer_files(dir / "gpt2.tiktoken");
  REQUIRE(files.size() == 2);
  CHECK((files[0].name == "tokenizer.json" && files[1].name == "tokenizer_config.json"));
  CHECK(Tokenizer::from_bytes(files[0].text, "stored", files[1].text).encode("the them") == t.encode("the them"));
}

TEST_CASE("a tokenizer.model of Llama 3 is recognized by its content and has the special tokens of its family") {
  TempDir dir;
  write_file(dir / "tokenizer.model", ranks({"ab"}, kLlama3));
  const Tokenizer t = Tokenizer::load(dir.path());
  CHECK(t.vocab() == kLlama3 + 256);
  CHECK((t.bos() == kLlama3 && t.eos() == kLlama3 + 1));
  CHECK(t.before_text() == std::vector<int32_t>{kLlama3});
  CHECK(t.id_of("<|eot_id|>") == kLlama3 + 9);
  CHECK(t.id_of("<|reserved_special_token_247|>") == kLlama3 + 255);
  CHECK(t.encode("ab1234") == std::vector<int32_t>{256, '1', '2', '3', '4'});
}

TEST_CASE("a damaged or unknown file of ranks is refused with its line") {
  const std::string good = ranks({"th"});
  const auto refused = [](const std::string& text, const std::vector<std::string>& errors) {
    INFO(text.substr(0, 60));
    expect_error(Exit::kUsage, errors, [&] { convert_tiktoken(text, "x.tiktoken"); });
  };
  CHECK(is_tiktoken(good.substr(0, 400)));
  CHECK_FALSE(is_tiktoken("{\"version\": 1}"));
  CHECK_FALSE(is_tiktoken("\n\x0E\n\x05<unk>"));
  CHECK_FALSE(is_tiktoken(""));
  convert_tiktoken(good.substr(0, good.size() - 1), "x.tiktoken");  // no newline behind the last line
  refused(good + encode_base64("zzz") + " 50256\n", {"x.tiktoken", "50257 tokens", "50256 (gpt2)", "128000 (Llama 3)"});
  refused(good.substr(0, good.size() / 2), {"x.tiktoken: line ", "expected the base64"});
  refused("AA== 0\nAQ== 2\n", {"line 2", "the rank 1", "AQ== 2"});
  refused("AA== 0\n!Q== 1\n", {"line 2", "!Q== 1"});
  refused("AA== 0\n 1\n", {"line 2"});
  refused("AA== 0\n\n", {"line 2"});
  refused(std::string("AA== 0\n\0\xFF 1\n", 11), {"line 2"});
  refused("AA== 0\n" + encode_base64(std::string(257, 'x')) + " 1\n", {"line 2", "1 to 256 bytes"});
  refused(ranks({"th", "th"}), {"line 258", "that of line 257"});
}
