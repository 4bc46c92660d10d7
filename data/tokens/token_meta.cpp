#include "data/tokens/token_meta.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/tokens/files.h"
#include "kernels/core/check.h"
#include "kernels/core/json.h"
#include "kernels/core/json_field.h"

namespace gt {
using Json = nlohmann::json;
namespace {
constexpr const char* kNext = "); remove it or prepare the data again";
}

std::string to_json(const TokenMeta& m) {
  Json j;
  j["tokenizer_sha256"] = m.tokenizer_sha256;
  j["gpttrain_version"] = m.version;
  j["vocab"] = m.vocab;
  j["eod"] = m.eod;
  j["bos"] = m.bos;
  j["eos"] = m.eos;
  j["options"] = m.options.empty() ? Json::object() : parse_json<Json>(m.options, "options", kOwnJson);
  j["inputs"] = m.inputs;
  j["documents"] = m.documents;
  j["tokens"] = m.tokens;
  j["bytes"] = m.bytes;
  j["bin_xxh3_128"] = m.bin_xxh3_128;
  j["idx_xxh3_128"] = m.idx_xxh3_128;
  if (!m.mask_xxh3_128.empty()) j["mask_xxh3_128"] = m.mask_xxh3_128;
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void write_token_meta(const std::string& path, const TokenMeta& m) { write_file_atomically(path, to_json(m)); }

std::optional<TokenMeta> read_token_meta(const std::string& prefix) {
  const std::string path = prefix + ".meta.json";
  if (!std::filesystem::exists(path)) return std::nullopt;
  const std::string text = read_whole_file(path, 16 << 20);
  try {
    const Json j = parse_json<Json>(text, "", {.bytes = SIZE_MAX});
    TokenMeta m;
    m.tokenizer_sha256 = field<std::string>(j, "tokenizer_sha256");
    m.version = field_or(j, "gpttrain_version", std::string());
    m.vocab = field<int64_t>(j, "vocab");
    m.eod = field<int64_t>(j, "eod");
    for (const auto& [key, ids] : {std::pair("bos", &m.bos), {"eos", &m.eos}})
      for (size_t k = 0; j.contains(key) && k < j[key].size(); ++k) ids->push_back(field<int32_t>(j, cat(key, ".", k)));
    m.options = j.contains("options") ? j["options"].dump() : "{}";
    if (j.contains("inputs"))
      for (size_t k = 0; k < j["inputs"].size(); ++k) m.inputs.push_back(field<std::string>(j, cat("inputs.", k)));
    m.documents = field_or(j, "documents", int64_t{0});
    m.tokens = field_or(j, "tokens", int64_t{0});
    m.bytes = field_or(j, "bytes", int64_t{0});
    m.bin_xxh3_128 = field_or(j, "bin_xxh3_128", std::string());
    m.idx_xxh3_128 = field_or(j, "idx_xxh3_128", std::string());
    m.mask_xxh3_128 = field_or(j, "mask_xxh3_128", std::string());
    return m;
  } catch (const Error& e) { fail(Exit::kUsage, path, ": not a description of a token file (", e.what(), kNext); }
}

std::optional<DeclaredTokenizer> declared_tokenizer(const std::string& prefix) {
  const auto meta = read_token_meta(prefix);
  if (!meta || meta->tokenizer_sha256.empty()) return std::nullopt;
  return DeclaredTokenizer{prefix + ".meta.json", meta->tokenizer_sha256};
}

void require_one_tokenizer(const std::vector<DeclaredTokenizer>& claims) {
  const DeclaredTokenizer* first = nullptr;
  std::string others;
  for (const DeclaredTokenizer& c : claims) {
    if (c.sha256.empty()) continue;
    if (first == nullptr) first = &c;
    const std::string line = cat("\n  ", c.file, ": ", c.sha256);
    if (c.sha256 != first->sha256 && others.find(line) == std::string::npos) others += line;
  }
  if (others.empty()) return;
  const std::string found = cat("expected one tokenizer, found different ones (SHA-256 of the model):\n  ", first->file,
                                ": ", first->sha256, others);
  fail(Exit::kUsage, found,
       "\nThe same number means different text in them. Prepare the text again with one tokenizer (gpttrain data "
       "prepare --tokenizer), name the right data.tokenizer, or leave files out");
}

}  // namespace gt
