#include "data/tokenizer/tokenizer_files.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "data/bpe/tiktoken.h"
#include "data/bpe/vocab_merges.h"
#include "kernels/core/check.h"
#include "kernels/core/files.h"
#include "kernels/core/hash/sha256.h"

namespace gt {
namespace {

namespace fs = std::filesystem;
constexpr const char *kModel = "tokenizer.model", *kJson = "tokenizer.json", *kConfig = "tokenizer_config.json";
constexpr const char *kVocab = "vocab.json", *kMerges = "merges.txt", *kNames = "special_tokens_map.json";

bool there(const fs::path& p) {
  std::error_code ec;
  return fs::exists(p, ec);
}

fs::path beside(const std::string& file, const char* name) { return fs::path(file).parent_path() / name; }

// The file that defines the tokenizer of a folder, or "".
std::string main_file(const std::string& folder) {
  for (const char* name : {kModel, kJson, kVocab})
    if (there(fs::path(folder) / name) && (name != kVocab || there(fs::path(folder) / kMerges)))
      return (fs::path(folder) / name).string();
  return "";
}

// The file that `path`, a file or a folder, stands for.
std::string file_at(const std::string& path) {
  std::error_code ec;
  if (!fs::is_directory(path, ec)) return path;
  std::string file = main_file(path);
  GT_REQUIRE(!file.empty(), Exit::kUsage, path, ": holds neither ", kModel, " (SentencePiece) nor ", kJson, " nor ",
             kVocab, " with ", kMerges, "; name the file, or a Hugging Face folder that holds one");
  return file;
}

bool has_merges(const std::string& file) { return fs::path(file).filename() == kVocab && there(beside(file, kMerges)); }

std::string beginning_of(const std::string& path) {
  std::string text(400, '\0');  // enough for is_tiktoken()
  const ssize_t n = ::pread(open_to_read(path).get(), text.data(), text.size(), 0);
  GT_REQUIRE(n >= 0, Exit::kIo, path, ": read failed: ", std::strerror(errno));
  text.resize(static_cast<size_t>(n));
  return text;
}

std::string optional(const fs::path& p) { return there(p) ? read_whole_file(p.string(), kMaxTokenizerConfig) : ""; }

std::vector<TokenizerFile> converted_ranks(const std::string& file) {
  TiktokenFiles files = convert_tiktoken(read_whole_file(file, kMaxTokenizerFile), file);
  return {{kJson, file, std::move(files.tokenizer_json)}, {kConfig, file, std::move(files.tokenizer_config_json)}};
}

std::vector<TokenizerFile> converted_vocab(const std::string& vocab) {
  const fs::path added = beside(vocab, "added_tokens.json");
  GT_REQUIRE(!there(added), Exit::kUsage, added.string(), ": added tokens beside ", kVocab,
             " are not read; save the tokenizer as ", kJson, " with transformers' AutoTokenizer");
  const std::string merges = beside(vocab, kMerges).string(), config = beside(vocab, kConfig).string();
  return {
      {kJson, vocab,
       tokenizer_json_of(read_whole_file(vocab, kMaxTokenizerFile), read_whole_file(merges, kMaxTokenizerFile), vocab)},
      {kConfig, config, gpt2_tokenizer_config(optional(config), optional(beside(vocab, kNames)), config)}};
}

}  // namespace

std::string TokenizerFile::read(int64_t limit) const { return text.empty() ? read_whole_file(path, limit) : text; }
std::string TokenizerFile::sha256() const { return text.empty() ? sha256_file_hex(path) : sha256_hex(text); }

bool is_tokenizer_json(std::string_view beginning, std::string_view name) {
  return name.ends_with(".json") || beginning.starts_with('{');
}

bool holds_tokenizer(const std::string& folder) { return !main_file(folder).empty(); }

std::vector<std::string> tokenizer_paths(const std::string& path) {
  const std::string file = file_at(path);
  std::vector<std::string> out{file};
  const bool pair = has_merges(file);
  if (pair) out.push_back(beside(file, kMerges).string());
  for (const char* name : {kConfig, kNames})
    if ((name == kNames ? pair : is_tokenizer_json("", file)) && there(beside(file, name)))
      out.push_back(beside(file, name).string());
  return out;
}

std::vector<TokenizerFile> tokenizer_files(const std::string& path) {
  const std::string file = file_at(path);
  if (has_merges(file)) return converted_vocab(file);
  const std::string beginning = beginning_of(file);
  if (is_tiktoken(beginning)) return converted_ranks(file);
  if (!is_tokenizer_json(beginning, file)) return {{kModel, file, ""}};
  std::vector<TokenizerFile> files{{kJson, file, ""}};
  if (const fs::path config = beside(file, kConfig); there(config)) files.push_back({kConfig, config.string(), ""});
  return files;
}

}  // namespace gt
