// Tokens on disk in any format, as sequences that samples are cut from. token_file.h reads Megatron's pair,
// llmc_tokens.h llm.c's shards. Files are mapped, never copied. Independent of samples and their order.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "data/samples/sample_order.h"

namespace gt {

// Dtype codes of Megatron's format; codes 2 (i8), 6 (f64), 7 (f32) exist and are rejected.
enum class TokenType : uint8_t { kU8 = 1, kI16 = 3, kI32 = 4, kI64 = 5, kU16 = 8 };
int64_t width_of(TokenType t);     // bytes per token
const char* name_of(TokenType t);  // "u16"

// u16 below 65500 pieces, else i32: the convention of readers of this format (one of them misreads u16 above it).
TokenType token_type_for(int64_t pieces);

// Identity of a dataset's content: keys caches, is stored in checkpoints.
struct Fingerprint {
  int64_t bin_bytes = 0;   // total over all token files
  std::string idx_sha256;  // of the whole .idx; llm.c's shards: see llmc_tokens.h
  uint64_t ends_xxh3 = 0;  // XXH3-64 of the first and last MiB of .bin
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
  std::string text() const;  // one line, used in cache file names
};

struct TokenFileOptions {
  std::string cache_dir;                         // cache of fingerprints and check results; empty: none
  std::function<void(const std::string&)> warn;  // optional
  bool remembers = true;                         // false: cache_dir is read-only
  // An .idx of up to this many bytes is checked and hashed at every opening; the results of a larger one are cached.
  int64_t rehash_bytes = int64_t{64} << 20;
};

class TokenStore {
 public:
  virtual ~TokenStore() = default;
  const std::string& prefix() const { return prefix_; }  // name in messages: PREFIX of a pair, a pattern of shards
  TokenType type() const { return type_; }
  int64_t width() const { return width_of(type_); }
  int64_t sequences() const { return sequences_; }
  int64_t documents() const { return documents_; }
  int64_t tokens() const { return tokens_; }
  const Fingerprint& fingerprint() const { return fingerprint_; }

  virtual std::string format() const = 0;                   // "Megatron's .bin + .idx"
  virtual bool windows() const { return false; }            // llm.c's files, which support window orders
  virtual Lengths lengths() const = 0;                      // token counts of all sequences
  virtual int64_t document_begin(int64_t entry) const = 0;  // first sequence of a document, or sequences()
  // Position of a token, for messages: file, byte.
  virtual std::string locate(int64_t sequence, int64_t index) const = 0;
  // Copies tokens [begin, begin + out.size()) of a sequence and returns the largest, with negative ids mapped above
  // 2^63: one comparison detects every id outside the vocabulary.
  virtual uint64_t read(int64_t sequence, int64_t begin, std::span<int32_t> out) const = 0;
  virtual void will_need(int64_t sequence, int64_t begin, int64_t count) const = 0;  // starts readahead
  virtual bool unchanged() const = 0;                                                // on disk, since opening
  // Whether tokens have a loss mask (data/samples/loss_mask.h), and its bytes of tokens [begin, begin + out.size()) of
  // a sequence: 1 where the token is a target, everywhere without a mask. Throws kIo for damaged bytes.
  virtual bool masked() const { return false; }
  virtual void read_mask(int64_t /*sequence*/, int64_t /*begin*/, std::span<uint8_t> out) const {
    std::fill(out.begin(), out.end(), uint8_t{1});
  }
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

// Opens `path`: PREFIX of Megatron's pair (or one of its two files), an llm.c file, or a pattern of such files. Checks
// everything; throws Error(kUsage) naming file, byte offset, expected and found.
std::unique_ptr<TokenStore> open_tokens(const std::string& path, const TokenFileOptions& options = {});

// Hash of at most 32 runs of 256 tokens, spread over all sequences: almost certainly differs between different texts,
// at the cost of 32 reads.
uint64_t sample_hash(const TokenStore&);

// The same of the loss mask.
uint64_t mask_hash(const TokenStore&);

// Widens tokens at `p`, which may be unaligned; returns the same value as TokenStore::read.
uint64_t gather_tokens(const uint8_t* p, TokenType type, std::span<int32_t> out);

}  // namespace gt
