// BPE over characters with byte fallback: the model of a tokenizer.json made from a SentencePiece model (Llama 2,
// Mistral, Gemma as transformers saves them). Text comes as pieces are spelled, with U+2581 for blanks.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/bpe/bpe_merges.h"
#include "data/bpe/tokenizer_json.h"
#include "data/tokenizer/tokenizer_model.h"

namespace gt {

class FallbackBpe final : public TokenizerModel {
 public:
  // Requires: a piece for each byte ("<0x41>"), which read_tokenizer_json ensures.
  explicit FallbackBpe(TokenizerJson t);

  int64_t vocab() const override { return static_cast<int64_t>(pieces_.size()); }
  const std::string& piece(int32_t id) const override { return pieces_[static_cast<size_t>(id)]; }
  int32_t id_of(const std::string& piece) const override;
  PieceKind kind(int32_t id) const override;
  SpecialIds special() const override { return {.unk = unk_}; }
  int64_t text_bytes(int32_t id) const override;
  void encode(std::string_view text, WordCache* cache, std::vector<int32_t>* out) const override;
  bool caches() const override { return cuts_; }
  std::string decode(std::span<const int32_t> ids) const override;  // blanks for U+2581; keeps the first
  size_t open_tokens(std::span<const int32_t> ids) const override;
  bool lossless() const override { return false; }
  bool joins() const override { return true; }
  LineCuts line_cuts() const override { return LineCuts::kNever; }

 private:
  void encode_word(std::string_view word, std::vector<int32_t>* out) const;

  std::vector<std::string> pieces_;
  std::unordered_map<std::string_view, int32_t> ids_;
  std::array<int32_t, 256> bytes_{};  // ids of single bytes
  std::vector<int16_t> byte_of_;      // by id; -1: no byte
  BpeMerges merges_;
  bool cuts_ = true;  // no piece has U+2581 behind another character: text may be cut before it
  int32_t unk_;
};

}  // namespace gt
