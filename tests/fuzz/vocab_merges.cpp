#include "data/bpe/vocab_merges.h"

#include "data/tokenizer/tokenizer.h"
#include "tests/data/byte_level_json.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {

using test::Json;

// The parts of the input between zero bytes: vocab.json, merges.txt, tokenizer_config.json, special_tokens_map.json.
std::vector<std::string> parts_of(std::string_view input) {
  std::vector<std::string> out(1);
  for (const char c : input)
    if (c == '\0' && out.size() < 4)
      out.emplace_back();
    else
      out.back() += c;
  out.resize(4);
  return out;
}

void run(std::string_view input) {
  const std::vector<std::string> parts = parts_of(input);
  refused([&] {
    const std::string config = gpt2_tokenizer_config(parts[2], parts[3], "config");
    const Tokenizer t =
        Tokenizer::from_bytes(tokenizer_json_of(test::with_whole_vocab(parts[0]), parts[1], "vocab"), "t.json", config);
    for (const int32_t id : t.encode("the thing's <|endoftext|>aaa\xFF")) GT_CHECK(id >= 0 && id < t.vocab());
  });
}

std::vector<std::string> seeds() {
  const Json whole = test::byte_level_json();
  std::string merges = "#version: 0.2\n";
  for (const auto& merge : whole["model"]["merges"]) merges += merge.get<std::string>() + "\n";
  const std::string end(1, '\0'), vocab(test::kShortVocab);
  return {whole["model"]["vocab"].dump() + end + merges, vocab + end + merges,
          vocab + end + merges + end + R"({"tokenizer_class": "GPT2Tokenizer", "pad_token": "<|endoftext|>"})",
          vocab + end + merges + end + "{}" + end + R"({"eos_token": {"content": "<|endoftext|>"}})"};
}

}  // namespace

Target vocab_merges() {
  return {"vocab_merges",
          run,
          seeds,
          {"#version: 0.2\n", "\n", " ", "\"the\":256,", "},\"merges\":[],\"x\":{", "\"<|endoftext|>\":0,", "\r\n",
           "\"unk_token\":", "null", "{", "18446744073709551615", "\\ud800", "\xEF\xBB\xBF"},
          20000};
}

}  // namespace gt::fuzz
