// Tokens on disk, whatever their format: sequences of tokens, which samples are cut from. token_file.h is Megatron's
// pair, llmc_tokens.h llm.c's shards. Files are mapped, never copied. Knows nothing of samples or their order.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "data/sample_order.h"

namespace gt {

// Width codes of Megatron's format; the codes 2 (i8), 6 (f64), 7 (f32) exist and are refused.
enum class TokenType : uint8_t { kU8 = 1, kI16 = 3, kI32 = 4, kI64 = 5, kU16 = 8 };
int64_t width_of(TokenType t);     // bytes a token
const char* name_of(TokenType t);  // "u16"

// u16 below 65500 pieces, else i32: the rule of the readers that share this format (one of them misreads u16 above it).
TokenType token_type_for(int64_t pieces);

// What identifies the content of a dataset: keys caches, is stored in checkpoints.
struct Fingerprint {
  int64_t bin_bytes = 0;   // of all files of tokens
  std::string idx_sha256;  // of the whole .idx; of llm.c's shards: see llmc_tokens.h
  uint64_t ends_xxh3 = 0;  // XXH3-64 of the first and last MiB of .bin
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
  std::string text() const;  // one line: what cache names are made of
};

struct TokenFileOptions {
  std::string cache_dir;                         // remembers fingerprints and verdicts; empty: nothing is remembered
  std::function<void(const std::string&)> warn;  // optional
  bool remembers = true;                         // false: cache_dir is only read
};

class TokenStore {
 public:
  virtual ~TokenStore() = default;
  const std::string& prefix() const { return prefix_; }  // as messages call it: PREFIX of a pair, a pattern of shards
  TokenType type() const { return type_; }
  int64_t width() const { return width_of(type_); }
  int64_t sequences() const { return sequences_; }
  int64_t documents() const { return documents_; }
  int64_t tokens() const { return tokens_; }
  const Fingerprint& fingerprint() const { return fingerprint_; }

  virtual std::string format() const = 0;                   // "Megatron's .bin + .idx"
  virtual bool windows() const { return false; }            // llm.c's: its orders of windows are for these
  virtual Lengths lengths() const = 0;                      // of all sequences, in tokens
  virtual int64_t document_begin(int64_t entry) const = 0;  // first sequence of a document, or sequences()
  virtual std::string locate(int64_t sequence, int64_t index) const = 0;  // a token, for messages: file, byte
  // Copies tokens [begin, begin + out.size()) of a sequence and returns the largest, with negative ids as values above
  // 2^63: one compare finds every id outside of the vocabulary.
  virtual uint64_t read(int64_t sequence, int64_t begin, std::span<int32_t> out) const = 0;
  virtual void will_need(int64_t sequence, int64_t begin, int64_t count) const = 0;  // asks the kernel to read ahead
  virtual bool unchanged() const = 0;                                                // on disk, since they were opened
  int64_t length(int64_t sequence) const { return lengths()[sequence]; }

 protected:
  TokenStore() = default;
  TokenStore(TokenStore&&) = default;
  TokenStore& operator=(TokenStore&&) = default;
  std::string prefix_;
  TokenType type_ = TokenType::kU16;
  int64_t sequences_ = 0, documents_ = 0, tokens_ = 0;
  Fingerprint fingerprint_;
};

// Whatever `path` names: PREFIX of Megatron's pair (or one of its two files), a file of llm.c, or a pattern of such
// files. Everything is checked; throws Error(kUsage) that names file, byte offset, what was expected and what was
// found.
std::unique_ptr<TokenStore> open_tokens(const std::string& path, const TokenFileOptions& options = {});

// Hash of at most 32 stretches of 256 tokens, spread over all sequences: differs with near certainty between different
// texts, at the cost of reading 32 places.
uint64_t sample_hash(const TokenStore&);

// Widens tokens of this type at `p`, which need not be aligned; returns what TokenStore::read returns.
uint64_t gather_tokens(const uint8_t* p, TokenType type, std::span<int32_t> out);

}  // namespace gt
