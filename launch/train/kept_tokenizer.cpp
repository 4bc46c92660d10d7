#include "launch/train/kept_tokenizer.h"

#include "data/tokenizer/tokenizer_files.h"
#include "kernels/core/check.h"

namespace gt {
namespace {

std::vector<TokenizerFile> kept_files(const std::string& step_dir) {
  std::vector<TokenizerFile> out;
  for (const char* name : kTokenizerFileNames)
    if (std::string bytes = read_aux(step_dir, name); !bytes.empty())
      out.push_back({name, step_dir + "/" + name, std::move(bytes)});
  return out;
}

}  // namespace

std::vector<AuxFile> tokenizer_aux(const std::string& path) {
  std::vector<AuxFile> out;
  if (path.empty()) return out;
  for (TokenizerFile& f : tokenizer_files(path))
    out.push_back({.name = f.name, .path = f.text.empty() ? f.path : "", .text = std::move(f.text)});
  return out;
}

std::string tokenizer_sha256(const std::string& path) { return tokenizer_identity(tokenizer_files(path)); }

std::optional<Tokenizer> kept_tokenizer(const std::string& step_dir) {
  const std::vector<TokenizerFile> files = kept_files(step_dir);
  if (files.empty()) return std::nullopt;
  return Tokenizer::from_files(files);
}

Tokenizer model_tokenizer(const std::string& given, const char* flag, const std::string& step_dir, int64_t vocab) {
  auto found = given.empty() ? kept_tokenizer(step_dir) : std::optional(Tokenizer::load(given));
  GT_REQUIRE(found, Exit::kUsage, step_dir, ": holds no tokenizer; give that of the run with ", flag);
  GT_REQUIRE(found->vocab() <= vocab, Exit::kUsage, "the tokenizer ", found->name(), " has ", found->vocab(),
             " pieces, the model ", vocab, ": give the tokenizer that the run was trained with");
  return std::move(*found);
}

std::optional<DeclaredTokenizer> kept_tokenizer_claim(const std::string& step_dir) {
  const std::vector<TokenizerFile> files = kept_files(step_dir);
  if (files.empty()) return std::nullopt;
  return DeclaredTokenizer{files.front().path, tokenizer_identity(files)};
}

}  // namespace gt
