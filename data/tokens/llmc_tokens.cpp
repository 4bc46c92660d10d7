#include "data/tokens/llmc_tokens.h"

#include <glob.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "data/tokens/token_file.h"
#include "kernels/core/check.h"
#include "kernels/core/hash/sha256.h"
#include "kernels/core/text.h"

namespace gt {
namespace {
namespace fs = std::filesystem;

constexpr int64_t kHeader = 256 * 4;
// Magic of a token file, with its version and dtype.
struct Kind {
  int32_t magic, version;
  TokenType type;
  const char* tokens;
};
constexpr Kind kKinds[] = {{20240520, 1, TokenType::kU16, "u16"}, {20240801, 7, TokenType::kI32, "u32"}};
constexpr int32_t kModel = 20240326;

bool is_pattern(const std::string& path) { return path.find_first_of("*?[") != std::string::npos; }

std::vector<std::string> matches(const std::string& pattern) {
  glob_t g{};
  const int rc = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &g);
  std::vector<std::string> found;
  for (size_t i = 0; rc == 0 && i < g.gl_pathc; ++i) found.emplace_back(g.gl_pathv[i]);
  ::globfree(&g);
  std::sort(found.begin(), found.end());
  return found;
}

// Resolves a path without a pattern to a file.
std::string file_of(const std::string& path) {
  std::error_code ec;
  return fs::is_regular_file(path, ec) ? path : path + ".bin";
}

// Token count of a shard, after checking all header fields.
int32_t checked_count(const MappedFile& f, const Kind*& kind) {
  const std::string& path = f.path();
  GT_REQUIRE(f.size() >= kHeader, Exit::kUsage, path, " byte ", f.size(), ": expected a header of ", kHeader,
             " bytes, found the end of the file");
  const auto word = [&](int i) { return load_at<int32_t>(f.data() + 4 * i); };
  const int32_t magic = word(0), version = word(1), count = word(2);
  kind = std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& k) { return k.magic == magic; });
  GT_REQUIRE(kind != std::end(kKinds), Exit::kUsage, path, " byte 0: expected the magic of llm.c's tokens, ",
             kKinds[0].magic, " (u16) or ", kKinds[1].magic, " (u32), found ", magic,
             magic == kModel ? cat(", that of a model: gpttrain import --from ", shell_word(path)) : std::string());
  GT_REQUIRE(version == kind->version, Exit::kUsage, path, " byte 4: expected version ", kind->version, " (",
             kind->tokens, " tokens), found ", version);
  GT_REQUIRE(count >= 1, Exit::kUsage, path, " byte 8: expected at least 1 token, found ", count);
  const int64_t expected = kHeader + width_of(kind->type) * int64_t{count};
  GT_REQUIRE(f.size() == expected, Exit::kUsage, path, " byte 8: ", count, " ", kind->tokens, " tokens need ", expected,
             " bytes, found ", f.size(), f.size() < expected ? "; copy or prepare it again" : "");
  return count;
}

// Hashes headers, which hold the counts, and both ends of each shard.
Fingerprint fingerprint_of(const std::vector<MappedFile>& shards) {
  constexpr int64_t kEnd = 1 << 16;
  Fingerprint out;
  Sha256 hash;
  std::string ends;
  for (const MappedFile& f : shards) {
    const int64_t n = std::min(f.size() - kHeader, kEnd);
    const uint64_t parts[] = {XXH3_64bits(f.data() + kHeader, static_cast<size_t>(n)),
                              XXH3_64bits(f.data() + f.size() - n, static_cast<size_t>(n))};
    out.bin_bytes += f.size();
    hash.update(f.data(), kHeader);
    hash.update(parts, sizeof parts);
    ends.append(reinterpret_cast<const char*>(parts), sizeof parts);
  }
  const auto digest = hash.finish();
  out.idx_sha256 = to_hex(digest.data(), digest.size());
  out.ends_xxh3 = XXH3_64bits(ends.data(), ends.size());
  return out;
}

}  // namespace

LlmcTokens::LlmcTokens(const std::string& path) {
  const bool pattern = is_pattern(path) && !fs::exists(path);
  const std::vector<std::string> files = pattern ? matches(path) : std::vector<std::string>{file_of(path)};
  GT_REQUIRE(!files.empty(), Exit::kUsage, path, ": no file matches this pattern; name llm.c's token files (.bin)");
  prefix_ = pattern ? path : token_prefix(path);
  std::string problems;
  const Kind* first = nullptr;
  for (const std::string& file : files) {
    try {
      MappedFile f(file);
      const Kind* kind = nullptr;
      counts_.push_back(checked_count(f, kind));
      if (first == nullptr) first = kind;
      GT_REQUIRE(kind == first, Exit::kUsage, file, " byte 0: expected ", first->tokens, " tokens as in ", files[0],
                 ", found ", kind->tokens);
      tokens_ += counts_.back();
      shards_.push_back(std::move(f));
    } catch (const Error& e) {
      if (e.code() != Exit::kUsage) throw;
      problems += (problems.empty() ? "" : "\n") + std::string(e.what());
    }
  }
  GT_REQUIRE(problems.empty(), Exit::kUsage, problems);
  type_ = first->type;
  sequences_ = documents_ = static_cast<int64_t>(shards_.size());
  fingerprint_ = fingerprint_of(shards_);
}

std::string LlmcTokens::format() const {
  return cat("llm.c's .bin, ", sequences_, sequences_ == 1 ? " file" : " files", " of ",
             type_ == TokenType::kU16 ? "u16" : "u32", " tokens");
}

std::string LlmcTokens::locate(int64_t sequence, int64_t index) const {
  return cat(shards_[static_cast<size_t>(sequence)].path(), ": token ", index, " (byte ", kHeader + index * width(),
             ")");
}

uint64_t LlmcTokens::read(int64_t sequence, int64_t begin, std::span<int32_t> out) const {
  GT_DCHECK(begin >= 0 && begin + static_cast<int64_t>(out.size()) <= length(sequence));
  return gather_tokens(shards_[static_cast<size_t>(sequence)].data() + kHeader + begin * width(), type_, out);
}

void LlmcTokens::will_need(int64_t sequence, int64_t begin, int64_t count) const {
  shards_[static_cast<size_t>(sequence)].will_need(kHeader + begin * width(), count * width());
}

bool LlmcTokens::unchanged() const {
  return std::all_of(shards_.begin(), shards_.end(), [](const MappedFile& f) { return f.unchanged(); });
}

bool names_llmc_tokens(const std::string& path) {
  std::error_code ec;
  if (fs::exists(token_prefix(path) + ".idx", ec)) return false;
  const std::string file = file_of(path);
  if (!fs::is_regular_file(file, ec)) return is_pattern(path);
  int32_t magic = 0;
  std::ifstream(file, std::ios::binary).read(reinterpret_cast<char*>(&magic), sizeof magic);
  // open_tokens rejects a model, naming the command that takes it.
  return magic == kModel ||
         std::any_of(std::begin(kKinds), std::end(kKinds), [&](const Kind& k) { return k.magic == magic; });
}

}  // namespace gt
