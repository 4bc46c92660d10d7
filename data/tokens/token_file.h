// Token files: PREFIX.bin holds only tokens, PREFIX.idx the sequence and document boundaries; byte for byte the layout
// of Megatron's MMapIndexedDataset (table in data/FORMAT.md). Both are mapped, never copied, and untrusted until every
// rule of the format has been checked. Independent of samples and their order.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "data/samples/loss_mask.h"
#include "data/tokens/mapped_file.h"
#include "data/tokens/token_store.h"

namespace gt {

class TokenFile final : public TokenStore {
 public:
  TokenFile() = default;
  // Opens and checks a file pair, and PREFIX.mask where it exists. `path`: PREFIX, PREFIX.bin or PREFIX.idx. Throws
  // Error(kUsage) naming file, byte offset, expected and found.
  static TokenFile open(const std::string& path, const TokenFileOptions& options = {});

  const MappedFile& bin() const { return bin_; }
  const MappedFile& idx() const { return idx_; }
  int64_t position(int64_t sequence) const;     // byte offset in .bin
  int64_t document_of(int64_t sequence) const;  // by binary search

  std::string format() const override { return "Megatron's .bin + .idx"; }
  Lengths lengths() const override { return {idx_.data() + 34, 0, sequences_}; }
  int64_t document_begin(int64_t entry) const override;
  std::string locate(int64_t sequence, int64_t index) const override;
  uint64_t read(int64_t sequence, int64_t begin, std::span<int32_t> out) const override;
  void will_need(int64_t sequence, int64_t begin, int64_t count) const override;
  bool unchanged() const override;
  bool masked() const override { return static_cast<bool>(mask_); }
  void read_mask(int64_t sequence, int64_t begin, std::span<uint8_t> out) const override;
  const LossMask& mask() const { return mask_; }

 private:
  void open_mask();
  const uint8_t* tokens_at(int64_t sequence, int64_t begin, int64_t count) const;  // kIo outside of the .bin
  MappedFile bin_, idx_;
  LossMask mask_;  // of PREFIX.mask, if there is one
};

// PREFIX: strips a trailing .bin or .idx.
std::string token_prefix(const std::string& path);

// Returns what is missing of the token files that `given` names by their prefix or by one of them, such as
// "X.idx: no such file beside X.bin". Empty if both exist.
std::string missing_token_files(const std::string& given);

// Writes the .idx with one sequence per document, in one pass per table, from a stream of lengths. Calls `rewind` and
// then `next` `count` times for each of the two length-driven tables. Throws Error(kIo).
void write_token_index(const std::string& path, TokenType type, int64_t count, const std::function<void()>& rewind,
                       const std::function<int32_t()>& next);

// Appends tokens to a .bin and keeps lengths in memory: for tests, tools and small sets (data/prepare/prepare.h
// streams).
class TokenFileWriter {
 public:
  TokenFileWriter(const std::string& prefix, TokenType type);
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;
  void add(std::span<const int32_t> document);  // one document of one sequence; kUsage when an id does not fit
  void finish();                                // writes the .idx; until then the pair is not a dataset
 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Packs ids into `out` (width_of(type) bytes each).
void pack_tokens(std::span<const int32_t> ids, TokenType type, uint8_t* out);

}  // namespace gt
