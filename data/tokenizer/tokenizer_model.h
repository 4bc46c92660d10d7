// Interface of tokenizer kinds behind Tokenizer (data/tokenizer/tokenizer.h): SentencePiece models
// (data/tokenizer/sentence_piece.h) and byte-level BPE (data/bpe/byte_level_bpe.h). Immutable and thread-safe.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/word_cache.h"

namespace gt {

// SentencePiece's piece types. User-defined symbols (<|endoftext|>, newline, --special; added tokens of a
// tokenizer.json) are matched in text before anything else. Control pieces (<s>, </s>, <pad>) and unknown are never
// matched.
enum class PieceKind : uint8_t { kNormal, kUnknown, kControl, kUserDefined, kUnused, kByte };

// Positions where text may be cut and its parts encoded separately without changing ids. kPlainLines: after a newline
// without white space before and after it.
enum class LineCuts : uint8_t { kNever, kPlainLines, kEveryLine };

struct SpecialIds {
  int32_t unk = -1, bos = -1, eos = -1, pad = -1;  // -1: none
  int32_t eod = -1;                                // <|endoftext|>, else eos: ends every document
  // Written around every text as the model was trained (data/bpe/tokenizer_config.h): BOS, sometimes EOS. Often empty.
  std::vector<int32_t> before, after;
  int32_t start = -1;  // stands for an empty text: the first of `before`, else a bos that a config names, else eod
};

class TokenizerModel {
 public:
  virtual ~TokenizerModel() = default;
  virtual int64_t vocab() const = 0;
  virtual const std::string& piece(int32_t id) const = 0;     // Requires: 0 <= id < vocab()
  virtual int32_t id_of(const std::string& piece) const = 0;  // -1: no such piece
  virtual PieceKind kind(int32_t id) const = 0;               // Requires: 0 <= id < vocab()
  virtual SpecialIds special() const = 0;
  // Bytes of text that a token stands for, unless it is a control or unknown piece. Requires: 0 <= id < vocab()
  virtual int64_t text_bytes(int32_t id) const = 0;

  // Appends the ids of `text`, using `cache` for words unless it is nullptr. Invalid bytes become U+FFFD.
  virtual void encode(std::string_view text, WordCache* cache, std::vector<int32_t>* out) const = 0;
  virtual bool caches() const = 0;                                     // whether a cache speeds up encode()
  virtual std::string decode(std::span<const int32_t> ids) const = 0;  // Requires: ids in range
  // Number of tokens at the end of `ids` whose text is not final: they begin a character that later tokens may
  // complete.
  virtual size_t open_tokens(std::span<const int32_t> ids) const = 0;

  virtual bool lossless() const = 0;  // decode(encode(t)) == t for every valid UTF-8 text
  virtual bool joins() const = 0;     // decoded parts, cut where no token is open, concatenate to the decoded whole
  virtual LineCuts line_cuts() const = 0;
};

}  // namespace gt
