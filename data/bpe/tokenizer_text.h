// The JSON of a tokenizer.json, taken apart while it is parsed: the vocabulary and the merges as flat lists, the small
// rest as a value. Counts, lengths, nesting and duplicate keys are checked before anything is kept.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gt {

struct TokenizerText {
  std::vector<std::pair<std::string, int64_t>> vocab;       // model.vocab
  std::vector<std::pair<std::string, std::string>> merges;  // model.merges, "a b" or ["a", "b"]
  nlohmann::json rest;                                      // an object, without these two
};

// Throws kUsage naming `name`, the key or the byte, what was expected and what was found.
TokenizerText parse_tokenizer_text(std::string_view text, const std::string& name);

}  // namespace gt
