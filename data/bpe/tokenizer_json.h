// Parsed tokenizer.json of Hugging Face's tokenizers: pieces, merges, added tokens, pre-tokenizer steps. Unsupported
// settings are rejected by name, so that ids never differ silently.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gt {

struct BpeMerge {
  int32_t left, right, result;
};

// Token matched in text before anything else. `normalized`: in normalized text, after those that are not.
struct AddedToken {
  std::string text;
  int32_t id = -1;
  bool special = false, normalized = false;
};

// Pre-tokenizer step: splits text into matches of the pattern and the text in between. `removes`: matches are dropped;
// `invert`: matches and text in between are swapped.
struct SplitStep {
  std::string pattern;
  bool regex = true;  // in Oniguruma syntax; false: a plain string
  bool removes = false, invert = false;
};

struct TokenizerJson {
  std::vector<std::string> pieces;  // by id, spelled as in the file; empty: unused id
  int64_t model_pieces = 0;         // size of the vocabulary, excluding added tokens with ids of their own
  std::vector<BpeMerge> merges;     // by rank
  std::vector<AddedToken> added;
  std::vector<SplitStep> splits;  // applied before the byte-level step
  bool nfc = false;
  bool ignore_merges = false;  // a word that is a piece is not split
  int32_t unk = -1;
  std::vector<int32_t> before, after;  // special tokens that its template inserts around a text
};

// Throws kUsage naming `name`, the key, the expected and the found value. Limits: 64 MB, 2 million pieces of 16 kB, 2
// million merges, ids below 4194304 with at most 65536 unused ones.
TokenizerJson read_tokenizer_json(std::string_view text, const std::string& name);

}  // namespace gt
