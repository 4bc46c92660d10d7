// Tokenizer of a tokenizer.json as Hugging Face's library runs it: added tokens, normalizer, pre-tokenizer, a model of
// words, decoder. For all kinds but the byte-level BPE of GPT-2, Llama 3 and Qwen, which data/bpe/byte_level_bpe.h runs
// faster. Ids equal the library's (tests/launch/models/tokenizer_kinds_test.cpp).
#pragma once
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "data/bpe/added_tokens.h"
#include "data/bpe/tokenizer_json.h"
#include "data/hf/normalizer.h"
#include "data/hf/token_decoder.h"
#include "data/hf/word_model.h"
#include "data/hf/word_splitter.h"
#include "data/tokenizer/tokenizer_model.h"

namespace gt {

class JsonTokenizer final : public TokenizerModel {
 public:
  // `config`: contents of tokenizer_config.json, or empty. Throws kUsage naming `name` and the part that is not
  // understood. Requires: BlankRule::kPipeline.
  JsonTokenizer(TokenizerJson t, const std::string& name, const std::string& config);

  int64_t vocab() const override { return static_cast<int64_t>(pieces_.size()); }
  const std::string& piece(int32_t id) const override { return pieces_[static_cast<size_t>(id)]; }
  int32_t id_of(const std::string& piece) const override;
  PieceKind kind(int32_t id) const override;
  SpecialIds special() const override { return special_; }
  // Between two other tokens, as the decoder writes it: with the blank before a word.
  int64_t text_bytes(int32_t id) const override;
  void encode(std::string_view text, WordCache* cache, std::vector<int32_t>* out) const override;
  bool caches() const override { return true; }
  std::string decode(std::span<const int32_t> ids) const override;
  size_t open_tokens(std::span<const int32_t> ids) const override;
  bool lossless() const override { return false; }
  bool joins() const override { return decoder_.joins(); }
  LineCuts line_cuts() const override { return LineCuts::kNever; }

 private:
  void add_tokens(const std::vector<AddedToken>& added, const std::string& name);
  // `first`: it begins the whole text.
  void encode_between(std::string_view text, bool first, WordCache* cache, std::vector<int32_t>* out) const;
  std::string bytes_of_token(int32_t id) const;

  std::vector<std::string> pieces_;               // by id
  std::unordered_map<std::string, int32_t> ids_;  // by piece
  std::vector<bool> is_added_;                    // by id
  AddedTokens raw_, normalized_;                  // matched in raw text; in normalized text
  TextNormalizer normalizer_;
  WordSplitter words_;
  std::unique_ptr<const WordModel> model_;
  TokenDecoder decoder_;
  SpecialIds special_;
};

}  // namespace gt
