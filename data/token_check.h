// The rules of the token file format, each with an error that names file, byte offset, what was expected and what was
// found. Used by data/token_file.cpp; nothing else needs it.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "data/token_file.h"

namespace gt {

struct TokenHeader {
  TokenType type = TokenType::kU16;
  int64_t sequences = 0, entries = 0;  // entries of the document table = documents + 1
};

// Both files of the pair exist; otherwise says what `given` looks like and how to prepare it.
void require_token_pair(const std::string& given, const std::string& prefix);
// Size, magic, version, dtype, and that the tables fill the file exactly (checked arithmetic, nothing is allocated).
TokenHeader check_token_header(const MappedFile& idx, const std::function<void(const std::string&)>& warn);
// Walks the tables once with up to 4 threads; returns the number of tokens.
int64_t check_token_tables(const MappedFile& idx, const MappedFile& bin, const TokenHeader& h);
Fingerprint fingerprint_of(const MappedFile& idx, const MappedFile& bin);

// Remembers a good verdict and the fingerprint by (path, size, time) of both files, so that a large index is read once.
class VerdictCache {
 public:
  VerdictCache(const std::string& cache_dir, const MappedFile& idx, const MappedFile& bin);
  bool load(int64_t* tokens, Fingerprint* f) const;
  void store(int64_t tokens, const Fingerprint& f) const;  // a folder that cannot be written is no error

 private:
  std::string file_, key_;
};

}  // namespace gt
