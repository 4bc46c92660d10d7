// SentencePiece models behind TokenizerModel; only one .cpp includes the library. Models of tokenizer_train are
// segmented losslessly for valid UTF-8 (data/README.md).
#pragma once
#include <memory>
#include <string>

#include "data/tokenizer/tokenizer_model.h"

namespace gt {

class SentencePiece final : public TokenizerModel {
 public:
  // Validates the bytes (data/tokenizer/model_walk.h), then loads them in a child process first
  // (data/tokenizer/model_trial.h), whatever their origin. No other path passes bytes to the library. Throws kUsage
  // naming the error and its position.
  // `spelled`: text comes as pieces are spelled, with U+2581 for blanks and the one that begins it, and nothing of it
  // is changed; decode() keeps that one. So transformers' converters of Llama and Gemma use a model, whatever its own
  // settings.
  SentencePiece(const std::string& model, const std::string& sha256, const std::string& name, bool spelled = false);
  ~SentencePiece() override;

  int64_t vocab() const override;
  const std::string& piece(int32_t id) const override;
  int32_t id_of(const std::string& piece) const override;
  PieceKind kind(int32_t id) const override;
  SpecialIds special() const override;
  void encode(std::string_view text, WordCache* cache, std::vector<int32_t>* out) const override;
  bool caches() const override { return cuts_at_blanks(); }
  std::string decode(std::span<const int32_t> ids) const override;
  size_t open_tokens(std::span<const int32_t> ids) const override;
  bool lossless() const override;
  bool joins() const override { return lossless(); }
  LineCuts line_cuts() const override;
  int64_t text_bytes(int32_t id) const override;

  float score(int32_t id) const;
  bool bpe() const, unigram() const;  // segmentation algorithm; neither: words or characters
  bool cuts_at_blanks() const;        // text may be cut before every blank without changing ids

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gt
