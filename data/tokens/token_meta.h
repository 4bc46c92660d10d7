// PREFIX.meta.json: provenance of a token file. Our own format; optional when reading.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gt {

struct TokenMeta {
  std::string tokenizer_sha256, version;  // version of gpttrain that wrote it
  int64_t vocab = 0, eod = -1;            // pieces; -1: no end-of-document token
  std::vector<int32_t> bos, eos;  // tokens that begin and end every text beside eod; files of older versions: none
  std::string options;            // JSON text of the options that affect the output
  std::vector<std::string> inputs;
  int64_t documents = 0, tokens = 0, bytes = 0;  // bytes of text
  std::string bin_xxh3_128, idx_xxh3_128;
  std::string mask_xxh3_128;  // of PREFIX.mask; empty: there is none
};

std::string to_json(const TokenMeta&);
void write_token_meta(const std::string& path, const TokenMeta&);     // atomic: temporary file, then rename; kIo
std::optional<TokenMeta> read_token_meta(const std::string& prefix);  // nullopt when absent; kUsage when broken

// The tokenizer that a file declares for its ids.
struct DeclaredTokenizer {
  std::string file, sha256;  // of the tokenizer; empty: not declared
};
std::optional<DeclaredTokenizer> declared_tokenizer(const std::string& prefix);  // from PREFIX.meta.json, if declared

// Throws kUsage naming the files when they declare different tokenizers.
void require_one_tokenizer(const std::vector<DeclaredTokenizer>& claims);

}  // namespace gt
