#include "data/tokenizer/tokenizer_files.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "data/bpe/tiktoken.h"
#include "data/bpe/tokenizer_config.h"
#include "data/bpe/vocab_merges.h"
#include "data/hf/tekken.h"
#include "data/hf/word_piece_vocab.h"
#include "kernels/core/check.h"
#include "kernels/core/files.h"
#include "kernels/core/json.h"

namespace gt {
namespace {

namespace fs = std::filesystem;
constexpr const char *kModel = "tokenizer.model", *kJson = "tokenizer.json", *kConfig = "tokenizer_config.json";
constexpr const char *kVocab = "vocab.json", *kMerges = "merges.txt", *kNames = "special_tokens_map.json";
constexpr const char *kAdded = "added_tokens.json", *kPieces = "vocab.txt", *kTekken = "tekken.json";
constexpr const char* kFamily = "config.json";    // of the folder's model
constexpr const char* kOwnEnd = "<|endoftext|>";  // in every model of tokenizer_train

bool there(const fs::path& p) {
  std::error_code ec;
  return fs::exists(p, ec);
}

fs::path beside(const std::string& file, const char* name) { return fs::path(file).parent_path() / name; }

// The file that defines the tokenizer of a folder, or "".
std::string main_file(const std::string& folder) {
  for (const char* name : {kModel, kJson, kVocab, kTekken, kPieces})
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
             kVocab, " with ", kMerges, " nor ", kPieces, " (BERT) nor ", kTekken,
             " (Mistral); name the file, or a Hugging Face folder that holds one");
  return file;
}

std::string beginning_of(const std::string& path) {
  std::string text(400, '\0');  // enough for is_tiktoken()
  const ssize_t n = ::pread(open_to_read(path).get(), text.data(), text.size(), 0);
  GT_REQUIRE(n >= 0, Exit::kIo, path, ": read failed: ", std::strerror(errno));
  text.resize(static_cast<size_t>(n));
  return text;
}

// The tokenizer_config.json that a bare tokenizer.model of a folder stands for by the model_type of the config.json
// beside it; "" for families of other classes, and for models of tokenizer_train, which begin no text with BOS.
std::string config_of_family(const std::string& model) {
  const std::string config = beside(model, kFamily).string();
  if (!there(config)) return "";
  const auto j = parse_json_if_valid<nlohmann::json>(read_whole_file(config, kMaxTokenizerConfig));
  const auto type = j.is_object() ? j.find("model_type") : j.end();
  if (type == j.end() || !type->is_string()) return "";
  const auto& name = type->get_ref<const std::string&>();
  const bool gemma = name.starts_with("gemma"), llama = name == "llama" || name == "mistral" || name == "mixtral";
  if (!gemma && !llama) return "";
  if (read_whole_file(model, kMaxTokenizerFile).find(kOwnEnd) != std::string::npos) return "";
  nlohmann::json out{{"tokenizer_class", gemma ? "GemmaTokenizer" : "LlamaTokenizer"}, {"add_bos_token", true}};
  if (llama) out["legacy"] = true;
  return out.dump(2) + "\n";
}

// The files on disk that `path` stands for, the one that defines the ids first.
std::vector<TokenizerFile> files_at(const std::string& path) {
  const std::string file = file_at(path);
  const bool pair = fs::path(file).filename() == kVocab && there(beside(file, kMerges));
  const std::string own = fs::path(file).filename().string();
  if (own == kTekken) return {{kTekken, file, ""}};
  const bool pieces = own == kPieces;
  const bool json = !pair && !pieces && is_tokenizer_json(beginning_of(file), file), model = own == kModel;
  std::vector<TokenizerFile> files{{pair ? kVocab : pieces ? kPieces : json ? kJson : kModel, file, ""}};
  const auto add = [&](const char* name) {
    if (there(beside(file, name))) files.push_back({name, beside(file, name).string(), ""});
  };
  if (pair) add(kMerges);
  if (model) add(kJson);
  if (pair || pieces || json || model)
    for (const char* name : {kConfig, kNames, kAdded}) add(name);
  if (model && !there(beside(file, kJson)) && !there(beside(file, kConfig)))
    if (std::string config = config_of_family(file); !config.empty())
      files.push_back({kConfig, beside(file, kFamily).string(), std::move(config)});
  return files;
}

std::vector<TokenizerFile> converted_ranks(const TokenizerFile& ranks) {
  TiktokenFiles files = convert_tiktoken(ranks.read(kMaxTokenizerFile), ranks.path);
  return {{kJson, ranks.path, std::move(files.tokenizer_json)},
          {kConfig, ranks.path, std::move(files.tokenizer_config_json)}};
}

std::vector<TokenizerFile> converted_tekken(const TokenizerFile& tekken) {
  TiktokenFiles files = convert_tekken(tekken.read(kMaxTokenizerFile), tekken.path);
  return {{kJson, tekken.path, std::move(files.tokenizer_json)},
          {kConfig, tekken.path, std::move(files.tokenizer_config_json)}};
}

const TokenizerFile* find(const std::vector<TokenizerFile>& files, const char* name) {
  const auto at = std::find_if(files.begin(), files.end(), [&](const TokenizerFile& f) { return f.name == name; });
  return at == files.end() ? nullptr : &*at;
}

std::vector<TokenizerFile> without(std::vector<TokenizerFile> files, const char* name) {
  std::erase_if(files, [&](const TokenizerFile& f) { return f.name == name; });
  return files;
}

std::vector<TokenizerFile> converted_vocab(const std::vector<TokenizerFile>& files) {
  const TokenizerFile &vocab = *find(files, kVocab), &merges = *find(files, kMerges);
  if (const TokenizerFile* added = find(files, kAdded))
    fail(Exit::kUsage, added->path, ": added tokens beside ", kVocab, " are not read; save the tokenizer as ", kJson,
         " with transformers' AutoTokenizer");
  const std::string where =
      find(files, kConfig) != nullptr ? find(files, kConfig)->path : beside(vocab.path, kConfig).string();
  return {
      {kJson, vocab.path, tokenizer_json_of(vocab.read(kMaxTokenizerFile), merges.read(kMaxTokenizerFile), vocab.path)},
      {kConfig, where, gpt2_tokenizer_config(tokenizer_text(files, kConfig), tokenizer_text(files, kNames), where)}};
}

std::vector<TokenizerFile> converted_pieces(const std::vector<TokenizerFile>& files) {
  const TokenizerFile& pieces = *find(files, kPieces);
  if (const TokenizerFile* added = find(files, kAdded))
    fail(Exit::kUsage, added->path, ": added tokens beside ", kPieces, " are not read; save the tokenizer as ", kJson,
         " with transformers' AutoTokenizer");
  const std::string config = merged_tokenizer_config(tokenizer_text(files, kConfig), tokenizer_text(files, kNames), "",
                                                     pieces.path + ": tokenizer_config.json beside it");
  std::vector<TokenizerFile> out{
      {kJson, pieces.path, word_piece_json(pieces.read(kMaxTokenizerFile), config, pieces.path)}};
  if (!config.empty()) out.push_back({kConfig, pieces.path, config});
  return out;
}

}  // namespace

std::string tokenizer_text(const std::vector<TokenizerFile>& files, const char* name) {
  const TokenizerFile* file = find(files, name);
  return file == nullptr ? "" : file->read(std::string_view(name) == kJson ? kMaxTokenizerFile : kMaxTokenizerConfig);
}

std::vector<TokenizerFile> convert_tokenizer_files(std::vector<TokenizerFile> files) {
  const TokenizerFile* model = find(files, kModel);
  if (model != nullptr && is_tiktoken(model->text.empty() ? beginning_of(model->path) : model->text.substr(0, 400)))
    return find(files, kJson) == nullptr ? converted_ranks(*model) : without(files, kModel);
  if (model == nullptr && find(files, kJson) == nullptr && find(files, kVocab) != nullptr && find(files, kMerges))
    return converted_vocab(files);
  if (const TokenizerFile* tekken = find(files, kTekken)) return converted_tekken(*tekken);
  if (find(files, kPieces) != nullptr) return converted_pieces(files);
  return files;
}

std::string TokenizerFile::read(int64_t limit) const { return text.empty() ? read_whole_file(path, limit) : text; }

bool is_tokenizer_json(std::string_view beginning, std::string_view name) {
  return name.ends_with(".json") || beginning.starts_with('{');
}

bool holds_tokenizer(const std::string& folder) { return !main_file(folder).empty(); }

std::vector<std::string> tokenizer_paths(const std::string& path) {
  std::vector<std::string> out;
  for (const TokenizerFile& f : files_at(path)) out.push_back(f.path);
  return out;
}

std::vector<TokenizerFile> tokenizer_files(const std::string& path) { return convert_tokenizer_files(files_at(path)); }

}  // namespace gt
