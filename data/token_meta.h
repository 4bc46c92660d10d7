// PREFIX.meta.json: where a token file comes from. Ours, optional when reading; the token file itself never needs it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gt {

struct TokenMeta {
  std::string tokenizer_sha256, version;  // version of gpttrain that wrote it
  int64_t vocab = 0, eod = -1;            // pieces; -1: no end-of-document token
  std::string options;                    // JSON text of the options that shape the output
  std::vector<std::string> inputs;
  int64_t documents = 0, tokens = 0, bytes = 0;  // bytes of text
  std::string bin_xxh3_128, idx_xxh3_128;
};

std::string to_json(const TokenMeta&);
void write_token_meta(const std::string& path, const TokenMeta&);     // atomic: temporary name, then rename; kIo
std::optional<TokenMeta> read_token_meta(const std::string& prefix);  // nothing when absent; kUsage when broken

// A file that says which tokenizer its numbers are of.
struct TokenizerClaim {
  std::string file, sha256;  // of the tokenizer; empty: the file does not say
};
std::optional<TokenizerClaim> tokenizer_claim(const std::string& prefix);  // of PREFIX.meta.json, where it says

// Throws kUsage naming the files when they are of different tokenizers.
void require_one_tokenizer(const std::vector<TokenizerClaim>& claims);

}  // namespace gt
