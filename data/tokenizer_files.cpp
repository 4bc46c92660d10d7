#include "data/tokenizer_files.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "kernels/core/check.h"
#include "kernels/core/files.h"

namespace gt {
namespace {

namespace fs = std::filesystem;
constexpr const char *kModel = "tokenizer.model", *kJson = "tokenizer.json", *kConfig = "tokenizer_config.json";

std::string file_in(const std::string& folder) {
  std::error_code ec;
  for (const char* name : {kModel, kJson})
    if (fs::exists(fs::path(folder) / name, ec)) return (fs::path(folder) / name).string();
  fail(Exit::kUsage, folder, ": holds neither ", kModel, " (SentencePiece) nor ", kJson,
       "; name the file, or a Hugging Face folder that holds one");
}

std::string first_byte(const std::string& path) {
  char c = 0;
  const ssize_t n = ::pread(open_to_read(path).get(), &c, 1, 0);
  GT_REQUIRE(n >= 0, Exit::kIo, path, ": read failed: ", std::strerror(errno));
  return std::string(&c, static_cast<size_t>(n));
}

}  // namespace

bool is_tokenizer_json(std::string_view beginning, std::string_view name) {
  return name.ends_with(".json") || beginning.starts_with('{');
}

std::vector<TokenizerFile> tokenizer_files(const std::string& path) {
  std::error_code ec;
  const std::string file = fs::is_directory(path, ec) ? file_in(path) : path;
  if (!is_tokenizer_json(first_byte(file), file)) return {{kModel, file}};
  std::vector<TokenizerFile> files{{kJson, file}};
  const fs::path config = fs::path(file).parent_path() / kConfig;
  if (fs::exists(config, ec)) files.push_back({kConfig, config.string()});
  return files;
}

}  // namespace gt
