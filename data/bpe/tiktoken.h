// tiktoken's files of ranks (Llama 3's tokenizer.model, cl100k_base.tiktoken, qwen.tiktoken): one line per token, the
// base64 of its bytes and its rank, which is its id. The file names neither the pattern that splits text nor the
// special tokens: both are known for a few vocabularies, which differ in the number of their ranks. A file is converted
// to a tokenizer.json, which is what checkpoints keep.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gt {

// Returns whether a file that begins so (400 bytes suffice) holds ranks.
bool is_tiktoken(std::string_view beginning);

struct TiktokenFiles {
  std::string tokenizer_json, tokenizer_config_json;
};

// Converts the contents of a file of ranks. Any two neighbours whose concatenation is a token are a merge, lowest rank
// first, as transformers converts such files; a word that is a token is not split. `where`: the file's path, for
// messages. Throws kUsage for a broken line, a token of more than 256 bytes, ranks that do not ascend from 0, and a
// number of ranks that is not that of a known vocabulary.
TiktokenFiles convert_tiktoken(std::string_view ranks, const std::string& where);

// Inside of the JSON of a BPE model: "vocab" and "merges".
struct RankedPieces {
  std::string vocab, merges;
};

// Pieces of `tokens` by rank, whose ids begin at `first`, and their merges as above. Throws kUsage naming `where` for a
// token that occurs twice, and for merges of more bytes than a tokenizer.json may have. Requires: tokens of at most 256
// bytes.
RankedPieces pieces_of_ranks(const std::vector<std::string>& tokens, int64_t first, const std::string& where);

}  // namespace gt
