// Token files: PREFIX.bin holds tokens and nothing else, PREFIX.idx says where sequences and documents begin; byte for
// byte the layout of Megatron's MMapIndexedDataset (data/README.md has the table). Both are mapped, never copied, and
// both are treated as hostile until every rule of the format has been checked. Knows nothing of samples or their order.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "data/mapped_file.h"

namespace gt {

// Width codes of the format; the codes 2 (i8), 6 (f64), 7 (f32) exist and are refused.
enum class TokenType : uint8_t { kU8 = 1, kI16 = 3, kI32 = 4, kI64 = 5, kU16 = 8 };
int64_t width_of(TokenType t);     // bytes a token
const char* name_of(TokenType t);  // "u16"

// u16 below 65500 pieces, else i32: the rule of the readers that share this format (one of them misreads u16 above it).
TokenType token_type_for(int64_t pieces);

// What identifies the content of a dataset: keys caches, is stored in checkpoints.
struct Fingerprint {
  int64_t bin_bytes = 0;
  std::string idx_sha256;  // of the whole .idx
  uint64_t ends_xxh3 = 0;  // XXH3-64 of the first and last MiB of .bin
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
  std::string text() const;  // one line: what cache names are made of
};

struct TokenFileOptions {
  std::string cache_dir;                         // remembers fingerprints and verdicts; empty: nothing is remembered
  std::function<void(const std::string&)> warn;  // optional
};

class TokenFile {
 public:
  // `path` is PREFIX, PREFIX.bin or PREFIX.idx. Checks the whole file pair; throws Error(kUsage) that names file, byte
  // offset, what was expected and what was found.
  static TokenFile open(const std::string& path, const TokenFileOptions& options = {});

  const std::string& prefix() const { return prefix_; }
  const MappedFile& bin() const { return bin_; }
  const MappedFile& idx() const { return idx_; }
  TokenType type() const { return type_; }
  int64_t width() const { return width_of(type_); }
  int64_t sequences() const { return sequences_; }
  int64_t documents() const { return entries_ - 1; }
  int64_t tokens() const { return tokens_; }
  const Fingerprint& fingerprint() const { return fingerprint_; }

  int64_t length(int64_t sequence) const;       // tokens
  int64_t position(int64_t sequence) const;     // byte in .bin
  int64_t document_begin(int64_t entry) const;  // first sequence of a document; entry = documents() gives sequences()
  int64_t document_of(int64_t sequence) const;  // by binary search

  // Copies tokens [begin, begin + out.size()) of a sequence and returns the largest, with negative ids as values above
  // 2^63: one compare finds every id outside of the vocabulary.
  uint64_t read(int64_t sequence, int64_t begin, std::span<int32_t> out) const;
  void will_need(int64_t sequence, int64_t begin, int64_t count) const;  // asks the kernel to read ahead
  bool unchanged() const { return bin_.unchanged() && idx_.unchanged(); }

 private:
  std::string prefix_;
  MappedFile bin_, idx_;
  TokenType type_ = TokenType::kU16;
  int64_t sequences_ = 0, entries_ = 0, tokens_ = 0;
  Fingerprint fingerprint_;
};

// PREFIX without a .bin or .idx at its end.
std::string token_prefix(const std::string& path);

// Writes the .idx of one sequence a document, in one pass a table, from a stream of lengths: `next` is called `count`
// times for each of the two length-driven tables and `rewind` before each of them. Throws Error(kIo).
void write_token_index(const std::string& path, TokenType type, int64_t count, const std::function<void()>& rewind,
                       const std::function<int32_t()>& next);

// Appends tokens to a .bin and remembers lengths in memory: for tests, tools and small sets (data/prepare.h streams).
class TokenFileWriter {
 public:
  TokenFileWriter(const std::string& prefix, TokenType type);
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;
  void add(std::span<const int32_t> document);  // one document of one sequence; throws kUsage when an id does not fit
  void finish();                                // writes the .idx: until then the pair is not a dataset
 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Packs ids into `out` (width_of(type) bytes each).
void pack_tokens(std::span<const int32_t> ids, TokenType type, uint8_t* out);

}  // namespace gt
