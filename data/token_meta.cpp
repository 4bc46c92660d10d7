#include "data/token_meta.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/files.h"
#include "data/shallow_json.h"
#include "kernels/core/check.h"

namespace gt {
using Json = nlohmann::json;

std::string to_json(const TokenMeta& m) {
  Json j;
  j["tokenizer_sha256"] = m.tokenizer_sha256;
  j["gpttrain_version"] = m.version;
  j["vocab"] = m.vocab;
  j["eod"] = m.eod;
  j["options"] = m.options.empty() ? Json::object() : Json::parse(m.options);
  j["inputs"] = m.inputs;
  j["documents"] = m.documents;
  j["tokens"] = m.tokens;
  j["bytes"] = m.bytes;
  j["bin_xxh3_128"] = m.bin_xxh3_128;
  j["idx_xxh3_128"] = m.idx_xxh3_128;
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void write_token_meta(const std::string& path, const TokenMeta& m) { write_file_atomically(path, to_json(m)); }

std::optional<TokenMeta> read_token_meta(const std::string& prefix) {
  const std::string path = prefix + ".meta.json";
  if (!std::filesystem::exists(path)) return std::nullopt;
  const std::string text = read_whole_file(path, 16 << 20);
  try {
    const Json j = parse_shallow<Json>(text, path);
    TokenMeta m;
    m.tokenizer_sha256 = j.at("tokenizer_sha256").get<std::string>();
    m.version = j.value("gpttrain_version", "");
    m.vocab = j.at("vocab").get<int64_t>();
    m.eod = j.at("eod").get<int64_t>();
    m.options = j.value("options", Json::object()).dump();
    m.inputs = j.value("inputs", std::vector<std::string>{});
    m.documents = j.value("documents", int64_t{0});
    m.tokens = j.value("tokens", int64_t{0});
    m.bytes = j.value("bytes", int64_t{0});
    m.bin_xxh3_128 = j.value("bin_xxh3_128", "");
    m.idx_xxh3_128 = j.value("idx_xxh3_128", "");
    return m;
  } catch (const Json::exception& e) {
    fail(Exit::kUsage, path, ": not a description of a token file (", e.what(),
         "); remove it or prepare the data again");
  }
}

}  // namespace gt
