// Which files a tokenizer consists of.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gt {

constexpr int64_t kMaxTokenizerFile = int64_t{64} << 20;   // bytes of a tokenizer.json; SentencePiece models have less
constexpr int64_t kMaxTokenizerConfig = int64_t{8} << 20;  // bytes of a tokenizer_config.json

struct TokenizerFile {
  std::string name, path;  // name: the one it has in a folder of ours or of Hugging Face
};

// The files of the tokenizer at `path`, a file or a folder: tokenizer.model alone, or tokenizer.json and behind it
// tokenizer_config.json, where that lies beside it. Of a folder with both kinds it is tokenizer.model. Throws kUsage
// for a folder with neither and for a path that does not exist.
std::vector<TokenizerFile> tokenizer_files(const std::string& path);

// Whether this is a tokenizer.json: its name ends with .json, or its text begins with a brace. Anything else is a
// SentencePiece model.
bool is_tokenizer_json(std::string_view beginning, std::string_view name);

}  // namespace gt
