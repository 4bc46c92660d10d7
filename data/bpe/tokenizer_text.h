// Streaming parser of a tokenizer.json: vocabulary and merges as flat lists, the small remainder as JSON. Checks
// counts, lengths, nesting and duplicate keys before storing anything.
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

// Throws kUsage naming `name`, the key or byte, the expected and the found value.
TokenizerText parse_tokenizer_text(std::string_view text, const std::string& name);

}  // namespace gt
