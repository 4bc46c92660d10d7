// Files of a tokenizer.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gt {

constexpr int64_t kMaxTokenizerFile = int64_t{64} << 20;  // bytes of a tokenizer.json; SentencePiece models are smaller
constexpr int64_t kMaxTokenizerConfig = int64_t{8} << 20;  // bytes of a tokenizer_config.json

// Names of the files that together define a tokenizer in a Hugging Face folder or a checkpoint. Those that are there
// belong together: copying a tokenizer means copying all of them byte for byte.
constexpr std::array<const char*, 7> kTokenizerFileNames{
    "tokenizer.model",       "tokenizer.json",          "vocab.json",       "merges.txt",
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"};

// A file of a tokenizer. Its contents are `text` or, if that is empty, the file at `path`.
struct TokenizerFile {
  std::string name;  // in a checkpoint or Hugging Face folder: one of kTokenizerFileNames
  std::string path, text;
  std::string read(int64_t limit) const;  // its contents; throws kIo, or kUsage beyond `limit` bytes
};

// Returns the files of the tokenizer at `path`, a file or a folder, for Tokenizer::from_files and for checkpoints.
// First the one that defines the ids: in a folder tokenizer.model, else tokenizer.json, else vocab.json with
// merges.txt, else tekken.json, else vocab.txt. Then those of kTokenizerFileNames beside it that add tokens or name
// them. GPT-2's older vocab.json with merges.txt, tiktoken's file of ranks, Mistral's tekken.json and BERT's vocab.txt
// are converted to tokenizer.json and tokenizer_config.json (data/bpe/vocab_merges.h, tiktoken.h, data/hf/tekken.h,
// word_piece_vocab.h). A SentencePiece model under another name than tokenizer.model stands alone. One that lacks
// tokenizer.json and tokenizer_config.json has the class of the model_type in the config.json beside it, as in
// transformers 4: Llama's and Gemma's begin texts with BOS.
// Throws kUsage for a folder with none, for a path that does not exist, and for a vocabulary that cannot be converted.
std::vector<TokenizerFile> tokenizer_files(const std::string& path);

// Returns the same set with vocab.json and merges.txt, vocab.txt, tekken.json, or tiktoken's ranks under the name
// tokenizer.model, converted; other sets unchanged. Throws kUsage.
std::vector<TokenizerFile> convert_tokenizer_files(std::vector<TokenizerFile> files);

// Returns the contents of the file of this name; "" without one.
std::string tokenizer_text(const std::vector<TokenizerFile>& files, const char* name);

// Returns the paths on disk that tokenizer_files(path) reads. Throws as it does.
std::vector<std::string> tokenizer_paths(const std::string& path);

bool holds_tokenizer(const std::string& folder);

// Returns whether this is a tokenizer.json: its name ends with .json, or its text begins with a brace. Anything else is
// a SentencePiece model.
bool is_tokenizer_json(std::string_view beginning, std::string_view name);

}  // namespace gt
