// A tokenizer.json with a byte-level BPE of given merges, for tests to modify.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/bpe/byte_alphabet.h"

namespace gt::test {

using Json = nlohmann::ordered_json;
using Pairs = std::vector<std::pair<std::string, std::string>>;

// Ids 0 to 255 are bytes, then the results of the merges, then <|endoftext|>. Uses GPT-2's pre-tokenizer.
inline Json byte_level_json(const Pairs& merges = {{"t", "h"}, {"th", "e"}, {"\xC4\xA0", "the"}, {"a", "a"}}) {
  Json vocab = Json::object(), list = Json::array();
  for (int b = 0; b < 256; ++b) vocab[letter_of(static_cast<uint8_t>(b))] = b;
  for (const auto& [left, right] : merges) {
    vocab[left + right] = vocab.size();
    list.push_back(left + " " + right);
  }
  const Json end{{"id", vocab.size()}, {"content", "<|endoftext|>"}, {"single_word", false}, {"lstrip", false},
                 {"rstrip", false},    {"normalized", false},        {"special", true}};
  const Json bytes{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", Json::array({end})},
          {"normalizer", nullptr},
          {"pre_tokenizer", bytes},
          {"post_processor", nullptr},
          {"decoder", bytes},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", ""},
            {"end_of_word_suffix", ""},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"vocab", vocab},
            {"merges", list}}}};
}

// Stands for the vocabulary of byte_level_json() in a fuzzed input, so that most mutations hit the rest of it.
constexpr std::string_view kShortVocab = R"({"@":0})";

// Returns the input with the vocabulary itself.
inline std::string with_whole_vocab(std::string_view input) {
  static const std::string vocab = byte_level_json()["model"]["vocab"].dump();
  std::string text(input);
  if (const size_t at = text.find(kShortVocab); at != std::string::npos) text.replace(at, kShortVocab.size(), vocab);
  return text;
}

// The pre-tokenizer of Llama 3 and Qwen 2 with this pattern.
inline Json split_and_bytes(const std::string& pattern) {
  return {
      {"type", "Sequence"},
      {"pretokenizers",
       Json::array(
           {Json{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}},
            Json{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}}})}};
}

constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace gt::test
