// Files of a tokenizer.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gt {

constexpr int64_t kMaxTokenizerFile = int64_t{64} << 20;  // bytes of a tokenizer.json; SentencePiece models are smaller
constexpr int64_t kMaxTokenizerConfig = int64_t{8} << 20;  // bytes of a tokenizer_config.json

// A file of a tokenizer. Its contents are `text` or, if that is empty, the file at `path`.
struct TokenizerFile {
  std::string name;  // in a checkpoint or Hugging Face folder
  std::string path, text;
  std::string read(int64_t limit) const;  // its contents; throws kIo, or kUsage beyond `limit` bytes
  std::string sha256() const;             // of its contents; throws kIo
};

// Returns the files of the tokenizer at `path`, a file or a folder: tokenizer.model alone, or tokenizer.json followed
// by tokenizer_config.json if present beside it. GPT-2's older vocab.json with merges.txt beside it, and tiktoken's
// file of ranks, are converted to these two (data/bpe/vocab_merges.h, tiktoken.h). In a folder tokenizer.model wins,
// then tokenizer.json. Throws kUsage for a folder with none, for a path that does not exist, and for a vocabulary that
// cannot be converted.
std::vector<TokenizerFile> tokenizer_files(const std::string& path);

// Returns the paths on disk that tokenizer_files(path) reads. Throws kUsage for a folder with no tokenizer.
std::vector<std::string> tokenizer_paths(const std::string& path);

bool holds_tokenizer(const std::string& folder);

// Returns whether this is a tokenizer.json: its name ends with .json, or its text begins with a brace. Anything else is
// a SentencePiece model.
bool is_tokenizer_json(std::string_view beginning, std::string_view name);

}  // namespace gt
