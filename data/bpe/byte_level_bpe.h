// Byte-level BPE of a tokenizer.json (GPT-2, Llama 3, Qwen): added tokens, NFC, words by pattern, byte merges. Ids
// equal those of Hugging Face's tokenizers (tests/launch/models/tokenizer_json_test.cpp).
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/bpe/added_tokens.h"
#include "data/bpe/bpe_merges.h"
#include "data/bpe/pre_tokenizer.h"
#include "data/tokenizer/tokenizer_model.h"

namespace gt {

class ByteLevelBpe final : public TokenizerModel {
 public:
  // `config`: contents of tokenizer_config.json, or empty. Throws kUsage naming `name` and the unsupported part.
  // Requires: BlankRule::kByteLevel.
  ByteLevelBpe(TokenizerJson t, const std::string& name, const std::string& config);

  int64_t vocab() const override { return static_cast<int64_t>(pieces_.size()); }
  const std::string& piece(int32_t id) const override { return pieces_[static_cast<size_t>(id)]; }
  int32_t id_of(const std::string& piece) const override;
  PieceKind kind(int32_t id) const override;
  SpecialIds special() const override { return special_; }
  int64_t text_bytes(int32_t id) const override { return static_cast<int64_t>(bytes_[static_cast<size_t>(id)].size()); }
  void encode(std::string_view text, WordCache* cache, std::vector<int32_t>* out) const override;
  bool caches() const override { return true; }
  std::string decode(std::span<const int32_t> ids) const override;
  size_t open_tokens(std::span<const int32_t> ids) const override;
  bool lossless() const override {
    return !nfc_ && words_.lossless() && !raw_.any_strips() && !normalized_.any_strips();
  }
  bool joins() const override { return true; }
  LineCuts line_cuts() const override;

 private:
  void add_tokens(const std::vector<AddedToken>& added);
  void encode_between(std::string_view text, WordCache* cache, std::vector<int32_t>* out) const;
  void encode_word(std::string_view word, std::vector<int32_t>* out) const;

  std::vector<std::string> pieces_, bytes_;              // by id: spelling in the file; text
  std::unordered_map<std::string, int32_t> ids_;         // by spelling
  std::unordered_map<std::string_view, int32_t> whole_;  // by text, with ignore_merges
  std::array<int32_t, 256> letters_{};                   // ids of single bytes
  std::vector<bool> added_;                              // by id
  AddedTokens raw_, normalized_;                         // matched in raw text; in normalized text
  BpeMerges merges_;
  PreTokenizer words_;
  bool nfc_;
  SpecialIds special_;
};

}  // namespace gt
