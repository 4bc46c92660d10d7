// SentencePiece model in a Hugging Face folder whose other files add tokens to it: added tokens are matched in text
// first, and blanks are treated as the folder's tokenizer.json, or its class in tokenizer_config.json, defines. Ids
// equal those of transformers' AutoTokenizer (tests/launch/models/tokenizer_folder_test.cpp).
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "data/bpe/added_tokens.h"
#include "data/bpe/tokenizer_json.h"
#include "data/tokenizer/sentence_piece.h"

namespace gt {

class FolderModel final : public TokenizerModel {
 public:
  // `json`: contents of tokenizer.json, or empty. `config`: of tokenizer_config.json, completed by
  // merged_tokenizer_config(), or empty. Throws kUsage naming `name`: for files that contradict the model, for tokens
  // that transformers would add with ids of its own, and for a normalizer or pre-tokenizer of other kinds beside tokens
  // that the model does not have.
  FolderModel(const std::string& model, const std::string& sha256, const std::string& name, const std::string& json,
              const std::string& config);

  // Whether the ids of all texts, and the special tokens, are those of the model alone.
  bool adds_nothing() const { return adds_nothing_; }
  // Tokens that the model does not have, as "ID TEXT" lines; "" for none. Part of the tokenizer's identity.
  const std::string& added() const { return added_names_; }

  int64_t vocab() const override { return static_cast<int64_t>(pieces_.size()); }
  const std::string& piece(int32_t id) const override { return pieces_[static_cast<size_t>(id)]; }
  int32_t id_of(const std::string& piece) const override;
  PieceKind kind(int32_t id) const override;
  SpecialIds special() const override { return special_; }
  int64_t text_bytes(int32_t id) const override;
  void encode(std::string_view text, WordCache* cache, std::vector<int32_t>* out) const override;
  bool caches() const override { return inner_->caches(); }
  std::string decode(std::span<const int32_t> ids) const override;
  size_t open_tokens(std::span<const int32_t> ids) const override;
  bool lossless() const override { return rule_ == BlankRule::kModel && inner_->lossless() && !strips_; }
  bool joins() const override { return rule_ == BlankRule::kModel ? inner_->joins() : rule_ == BlankRule::kNone; }
  LineCuts line_cuts() const override;

 private:
  TokenizerJson read(const std::string& json, const std::string& config, const std::string& name,
                     std::string* unknown) const;
  void add_tokens(const TokenizerJson& t);
  void encode_between(std::string_view text, bool first, WordCache* cache, std::vector<int32_t>* out) const;
  // Whether the rule is a normalizer: then added tokens with `normalized` are matched after it, else before it.
  bool by_normalizer() const { return rule_ == BlankRule::kEvery || rule_ == BlankRule::kNone; }
  bool is_added(int32_t id) const { return is_added_[static_cast<size_t>(id)]; }

  std::unique_ptr<const TokenizerModel> inner_;
  std::vector<std::string> pieces_;  // by id: of the model, then of added tokens
  std::vector<bool> is_added_;       // by id: matched in text before anything else
  AddedTokens raw_, normalized_;     // matched in the text; in what is left of it, after a normalizer
  BlankRule rule_ = BlankRule::kModel;
  bool strips_ = false, adds_nothing_ = false;
  SpecialIds special_;
  std::string added_names_;
};

}  // namespace gt
