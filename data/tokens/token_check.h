// Format rules of token files; each error names file, byte offset, expected and found. Used only by
// data/tokens/token_file.cpp.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "data/tokens/token_file.h"

namespace gt {

struct TokenHeader {
  TokenType type = TokenType::kU16;
  int64_t sequences = 0, entries = 0;  // entries of the document table = documents + 1
};

// Requires both files of the pair; the error describes `given` and how to prepare it.
void require_token_pair(const std::string& given, const std::string& prefix);
// Checks size, magic, version, dtype, and that the tables fill the file exactly (overflow-checked; no allocation).
TokenHeader check_token_header(const MappedFile& idx, const std::function<void(const std::string&)>& warn);
// Walks the tables once with up to 4 threads; returns the number of tokens.
int64_t check_token_tables(const MappedFile& idx, const MappedFile& bin, const TokenHeader& h);
// Sizes, hash of the ends of the .bin, and `idx_sha256` or, if that is empty, the hash of the .idx.
Fingerprint fingerprint_of(const MappedFile& idx, const MappedFile& bin, std::string idx_sha256 = "");

// Caches the number of tokens and the hash of a large .idx that was found valid, so that it is read only once. Results
// are of one host and of MappedFile::identity(): a file replaced or written since has another one.
class CheckCache {
 public:
  CheckCache(const std::string& cache_dir, const MappedFile& idx, const MappedFile& bin);
  const std::string& file() const { return file_; }
  // Returns false for a missing or damaged result, one of other files, and values that no such files can have; `why`
  // (optional) receives the reason.
  bool load(int64_t* tokens, std::string* idx_sha256, std::string* why = nullptr) const;
  void store(int64_t tokens, const std::string& idx_sha256) const;  // a folder that cannot be used is not an error

 private:
  std::string file_, key_;
  int64_t bin_bytes_;
};

}  // namespace gt
