// A tokenizer.json of Hugging Face's tokenizers, read as data: which pieces, merges, added tokens and steps it has.
// What this program does not understand is refused by name, so that no id differs silently.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gt {

struct BpeMerge {
  int32_t left, right, result;
};

// A token that is matched in text before anything else. `normalized`: in normalized text, after those that are not.
struct AddedToken {
  std::string text;
  int32_t id = -1;
  bool special = false, normalized = false;
};

// A step of the pre-tokenizer: matches of the pattern, and what lies between them, become pieces of their own.
// `removes`: matches are dropped; `invert`: what lies between counts as the matches.
struct SplitStep {
  std::string pattern;
  bool regex = true;  // of Oniguruma; false: a string
  bool removes = false, invert = false;
};

struct TokenizerJson {
  std::vector<std::string> pieces;  // by id, as spelled; empty: no piece has this id
  int64_t model_pieces = 0;         // of the vocabulary, without added tokens of ids of their own
  std::vector<BpeMerge> merges;     // by rank
  std::vector<AddedToken> added;
  std::vector<SplitStep> splits;  // then bytes
  bool nfc = false;
  bool ignore_merges = false;  // a word that is a piece is that piece
  int32_t unk = -1;
  std::vector<int32_t> before, after;  // special tokens that its template puts around a text
};

// Throws kUsage naming `name`, the key, what was expected and what was found. Limits: 64 MB, 2 million pieces of 16 kB,
// 2 million merges, ids below 4194304 with at most 65536 unused ones.
TokenizerJson read_tokenizer_json(std::string_view text, const std::string& name);

}  // namespace gt
