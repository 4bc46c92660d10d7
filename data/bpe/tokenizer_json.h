// Parsed tokenizer.json of Hugging Face's tokenizers: pieces, merges, added tokens, template, and the steps of a
// byte-level BPE; other kinds read their steps themselves. Unsupported settings are rejected by name, so that ids never
// differ silently.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "data/bpe/added_tokens.h"

namespace gt {

struct BpeMerge {
  int32_t left, right, result;
};

// What becomes of blanks before a text is cut into pieces. kByteLevel: nothing. The others are of tokenizers made from
// SentencePiece models, whose pieces have U+2581 for a blank. kModel: as the SentencePiece model itself defines it.
// Else every blank becomes U+2581 and one more is put before: kNone: nothing; kEvery: each text between added tokens;
// kUnlessBlank: each that does not begin with a blank; kFirst: the same, but only at the beginning of the whole text.
// kNone and kEvery are normalizers: added tokens with `normalized` are matched after them. kPipeline: as normalizer,
// pre-tokenizer and decoder define it (data/hf/json_tokenizer.h).
enum class BlankRule : uint8_t { kByteLevel, kModel, kNone, kEvery, kUnlessBlank, kFirst, kPipeline };

// Pre-tokenizer step: splits text into matches of the pattern and the text in between. `removes`: matches are dropped;
// `invert`: matches and text in between are swapped.
struct SplitStep {
  std::string pattern;
  bool regex = true;  // in Oniguruma syntax; false: a plain string
  bool removes = false, invert = false;
};

// Patterns of a Digits step: characters of all three categories of numbers, one by one or in runs.
constexpr const char *kDigit = R"(\p{N})", *kDigits = R"(\p{N}+)";

enum class HfModel : uint8_t { kBpe, kWordPiece, kUnigram };

struct BpeSettings {
  bool byte_fallback = false, fuse_unk = false;
  std::string prefix, suffix;  // of characters that continue a word; of the last one
};
struct WordPieceSettings {
  std::string prefix = "##";      // of pieces that continue a word
  int64_t most_characters = 100;  // a longer word is unknown
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
  BlankRule blanks = BlankRule::kByteLevel;

  // Of kPipeline:
  HfModel model = HfModel::kBpe;
  std::vector<int32_t> model_ids;  // of the vocabulary
  BpeSettings bpe;
  WordPieceSettings word_piece;
  std::vector<double> scores;  // by id, of a Unigram model; `unigram_bytes`: with byte fallback
  bool unigram_bytes = false;
  std::shared_ptr<const nlohmann::json> parts;  // the object with normalizer, pre_tokenizer and decoder
};

std::string byte_piece(uint8_t byte);  // "<0x41>"

// Throws kUsage naming `name`, the key, the expected and the found value. Limits: 64 MB, 2 million pieces of 16 kB, 2
// million merges, ids below 4194304 with at most 65536 unused ones.
TokenizerJson read_tokenizer_json(std::string_view text, const std::string& name);

// Returns what a tokenizer.json beside a SentencePiece model adds to it: added tokens, template, blank rule (kModel
// where it has neither normalizer nor pre-tokenizer of the known kinds; then `unknown` names it). `pieces`: of the
// model, by id, as it spells them; `normal`: which of them are plain text. Throws kUsage naming `name` if its
// vocabulary has a plain piece with another id.
TokenizerJson read_tokens_beside(std::string_view text, const std::vector<std::string>& pieces,
                                 const std::vector<bool>& normal, const std::string& name, std::string* unknown);

}  // namespace gt
