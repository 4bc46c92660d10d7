// Files of a tokenizer.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gt {

constexpr int64_t kMaxTokenizerFile = int64_t{64} << 20;  // bytes of a tokenizer.json; SentencePiece models are smaller
constexpr int64_t kMaxTokenizerConfig = int64_t{8} << 20;  // bytes of a tokenizer_config.json

struct TokenizerFile {
  std::string name, path;  // name: in a checkpoint or Hugging Face folder
};

// Returns the files of the tokenizer at `path`, a file or a folder: tokenizer.model alone, or tokenizer.json followed
// by tokenizer_config.json if present beside it. In a folder with both kinds tokenizer.model wins. Throws kUsage for a
// folder with neither and for a path that does not exist.
std::vector<TokenizerFile> tokenizer_files(const std::string& path);

// Returns whether this is a tokenizer.json: its name ends with .json, or its text begins with a brace. Anything else is
// a SentencePiece model.
bool is_tokenizer_json(std::string_view beginning, std::string_view name);

}  // namespace gt
