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
Fingerprint fingerprint_of(const MappedFile& idx, const MappedFile& bin);

// Caches a positive check result and the fingerprint by (path, size, time) of both files, so a large index is read only
// once.
class CheckCache {
 public:
  CheckCache(const std::string& cache_dir, const MappedFile& idx, const MappedFile& bin);
  bool load(int64_t* tokens, Fingerprint* f) const;
  void store(int64_t tokens, const Fingerprint& f) const;  // an unwritable folder is not an error

 private:
  std::string file_, key_;
};

}  // namespace gt
