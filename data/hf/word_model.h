// Models of a tokenizer.json that turn one word into ids: BPE over characters (with byte fallback or without),
// WordPiece, Unigram. Words come as pieces are spelled in the file. Immutable and thread-safe.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/bpe/tokenizer_json.h"
#include "data/tokenizer/word_cache.h"

namespace gt {

class WordModel {
 public:
  virtual ~WordModel() = default;
  // Appends the ids of `word`, using `cache` unless it is nullptr. Throws kUsage when all words take more than the time
  // limit (data/tokenizer/time_budget.h). Requires: UTF-8, not empty.
  virtual void encode(std::string_view word, WordCache* cache, std::vector<int32_t>* out) const = 0;
};

// `t`: of which the pieces up to model_pieces form the vocabulary. `name`: for messages. Throws kUsage naming settings
// that are not understood.
std::unique_ptr<const WordModel> make_word_model(const TokenizerJson& t, const std::string& name);

// The models by themselves, for make_word_model().
std::unique_ptr<const WordModel> make_character_bpe(const TokenizerJson& t, const std::string& name);
std::unique_ptr<const WordModel> make_word_piece(const TokenizerJson& t, const std::string& name);
std::unique_ptr<const WordModel> make_unigram_model(const TokenizerJson& t, const std::string& name);

// Ids by piece, views of t.pieces: of the model's own vocabulary.
std::unordered_map<std::string_view, int32_t> model_ids(const TokenizerJson& t);

}  // namespace gt
