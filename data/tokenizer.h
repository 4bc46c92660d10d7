// Text to token ids and back: SentencePiece models behind a small class, so that the library stays in one .cpp. Models
// made by tokenizer_train (data/tokenizer_train.h) give back every valid UTF-8 text exactly. Knows no files but the
// model.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gt {

// SentencePiece's types of pieces. User-defined symbols (<|endoftext|>, newline, --special) are matched in text before
// anything else; control pieces (<s>, </s>, <pad>) and unknown never are.
enum class PieceKind : uint8_t { kNormal, kUnknown, kControl, kUserDefined, kUnused, kByte };

class Tokenizer {
 public:
  // The only way from bytes to the library: walks them (data/model_walk.h), then has a child process load them first
  // (data/model_trial.h), whoever made them. Throws kUsage naming what is wrong and where.
  static Tokenizer load(const std::string& path);
  static Tokenizer from_bytes(std::string model, const std::string& name);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  int64_t vocab() const;                          // pieces
  const std::string& piece(int32_t id) const;     // U+2581 stands for a blank; kUsage for an id out of range
  int32_t id_of(const std::string& piece) const;  // -1: no such piece
  int32_t unk() const, bos() const, eos() const, pad() const;  // -1: none
  int32_t eod() const;                                         // <|endoftext|>, else eos, else -1: ends every document
  bool is_byte(int32_t id) const;                              // a piece of the byte fallback
  const std::string& sha256() const;                           // of the model file
  const std::string& name() const;                             // for messages: its path
  PieceKind kind(int32_t id) const;
  float score(int32_t id) const;
  bool bpe() const, unigram() const;  // how text is segmented; neither: by words or characters

  // Thread-safe. Invalid UTF-8 becomes U+FFFD (data/prepare.h counts such bytes before they come here).
  std::vector<int32_t> encode(std::string_view text) const;
  void encode_append(std::string_view text, std::vector<int32_t>* out) const;
  std::string decode(std::span<const int32_t> ids) const;  // kUsage for an id out of range

  bool lossless() const;        // decode(encode(t)) == t for every valid UTF-8 text
  bool cuts_at_blanks() const;  // text may be cut before every blank without changing ids: what the word cache needs
  bool cuts_at_lines() const;   // text may be cut after every newline without changing ids

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// One thread's encoder: the same ids as Tokenizer::encode, about twice as fast on text with words that come again.
// Words of up to 64 bytes are looked up in a direct-mapped cache of 16 MB, when the model allows it (cuts_at_blanks).
class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer);
  ~Encoder();
  Encoder(Encoder&&) noexcept;
  void encode(std::string_view text, std::vector<int32_t>* out);  // appends
  bool caches() const;
  int64_t hits() const;
  int64_t misses() const;

 private:
  struct Cache;
  const Tokenizer* tokenizer_;
  std::unique_ptr<Cache> cache_;
};

}  // namespace gt
