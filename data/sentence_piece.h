// SentencePiece models: the library behind TokenizerModel, so that it stays in one .cpp. Models of tokenizer_train are
// segmented so that every valid UTF-8 text comes back (data/README.md).
#pragma once
#include <memory>
#include <string>

#include "data/tokenizer_model.h"

namespace gt {

class SentencePiece final : public TokenizerModel {
 public:
  // The only way from bytes to the library: walks them (data/model_walk.h), then has a child process load them first
  // (data/model_trial.h), whoever made them. Throws kUsage naming what is wrong and where.
  SentencePiece(const std::string& model, const std::string& sha256, const std::string& name);
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

  float score(int32_t id) const;
  bool bpe() const, unigram() const;  // how text is segmented; neither: by words or characters
  bool cuts_at_blanks() const;        // text may be cut before every blank without changing ids

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gt
