// Text to token ids and back. The file determines the kind: a SentencePiece model, or a tokenizer.json (BPE, WordPiece,
// Unigram), also in the older forms of GPT-2 (vocab.json and merges.txt) and BERT (vocab.txt), and Mistral's
// tekken.json. Models trained by tokenizer_train (data/tokenizer/tokenizer_train.h) are lossless for valid UTF-8.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer_files.h"
#include "data/tokenizer/tokenizer_model.h"

namespace gt {

class SentencePiece;

class Tokenizer {
 public:
  // `path`: a .model, a tokenizer.json, a vocab.json with merges.txt beside it, a vocab.txt, a tekken.json, tiktoken's
  // ranks, or a folder with one of them; with the files beside it that add tokens or name them
  // (data/tokenizer/tokenizer_files.h). Throws kUsage naming the invalid or unsupported part and its position.
  static Tokenizer load(const std::string& path);
  // Same, from a set of files in memory or on disk, in any order: those that tokenizer_files() returned, or all of
  // kTokenizerFileNames that a folder or checkpoint holds.
  static Tokenizer from_files(const std::vector<TokenizerFile>& files);
  // Same, from memory; `name` is for messages. `config`: contents of tokenizer_config.json, which names the special
  // tokens of a tokenizer.json; empty: none.
  static Tokenizer from_bytes(std::string bytes, const std::string& name, const std::string& config = "");
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  int64_t vocab() const { return vocab_; }        // largest id + 1
  const std::string& piece(int32_t id) const;     // as the file spells it: U+2581 or U+0120 stand for a blank; kUsage
                                                  // for an id out of range
  int32_t id_of(const std::string& piece) const;  // -1: no such piece
  int32_t unk() const { return special_.unk; }    // -1 for none, like the next four
  int32_t bos() const { return special_.bos; }
  int32_t eos() const { return special_.eos; }
  int32_t pad() const { return special_.pad; }
  int32_t eod() const { return special_.eod; }  // <|endoftext|>, else eos: ends every document
  // What the model was trained to see before and after every text: BOS, sometimes EOS (data/bpe/tokenizer_config.h).
  // Empty for GPT-2's tokenizers and those of tokenizer_train. encode() leaves them out.
  const std::vector<int32_t>& before_text() const { return special_.before; }
  const std::vector<int32_t>& after_text() const { return special_.after; }
  // Not empty: the tokenizer has a BOS, and no file defines whether texts begin with it (a SentencePiece model of
  // others, alone). They do not. What to do, for a note.
  std::string undecided_bos() const;
  int32_t empty_text() const { return special_.start; }  // stands for an empty text: BOS where there is one, else eod
  std::string names_of(const std::vector<int32_t>& ids) const;  // for messages: "<s> (1)"; "" for none
  bool is_byte(int32_t id) const;                               // piece of SentencePiece's byte fallback
  // Identifies the ids: of the file that defines them, and of tokens that other files add to a SentencePiece model.
  const std::string& sha256() const { return sha256_; }
  const std::string& name() const { return name_; }  // for messages: its path
  PieceKind kind(int32_t id) const;
  // Bytes of text that a token stands for; 0 for control and unknown pieces, the end of a document, and what stands
  // around a text. The tokens of a
  // text add up to its size, with one more where SentencePiece puts a blank before it. Requires: an id in range.
  int64_t text_bytes(int32_t id) const;
  const SentencePiece* sentence_piece() const;  // nullptr: a tokenizer.json

  // Thread-safe. Adds no tokens before or after the text. Every byte of invalid UTF-8 becomes U+FFFD
  // (data/prepare/prepare.h counts such bytes in advance).
  std::vector<int32_t> encode(std::string_view text) const;
  void encode_append(std::string_view text, std::vector<int32_t>* out) const;
  // Throws kUsage for an id out of range. Invalid UTF-8, such as an incomplete character, becomes U+FFFD.
  std::string decode(std::span<const int32_t> ids) const;
  // Number of tokens at the end of `ids` whose text is not final: they begin a character that later tokens may
  // complete.
  size_t open_tokens(std::span<const int32_t> ids) const { return model_->open_tokens(ids); }

  bool lossless() const { return model_->lossless(); }  // decode(encode(t)) == t for every valid UTF-8 text
  bool joins() const { return model_->joins(); }        // TokenizerModel::joins
  LineCuts line_cuts() const { return model_->line_cuts(); }

 private:
  friend class Encoder;
  Tokenizer(std::unique_ptr<const TokenizerModel> model, std::string name, std::string sha256);
  std::unique_ptr<const TokenizerModel> model_;
  int64_t vocab_;
  SpecialIds special_;
  std::string name_, sha256_;
  bool alone_ = false;  // no other file of a folder was there
};

// Returns Tokenizer::sha256 of the tokenizer with these files, as from_files would give it, without loading a
// tokenizer.json. Throws as from_files.
std::string tokenizer_identity(const std::vector<TokenizerFile>& files);

// Encoder of one thread: same ids as Tokenizer::encode, about twice as fast on text with repeated words.
class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer);
  void encode(std::string_view text, std::vector<int32_t>* out);  // appends
  bool caches() const { return cache_ != nullptr; }
  int64_t hits() const { return cache_ ? cache_->hits() : 0; }
  int64_t misses() const { return cache_ ? cache_->misses() : 0; }

 private:
  const TokenizerModel* model_;
  std::unique_ptr<WordCache> cache_;
};

}  // namespace gt
