#include "data/tokens/token_check.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "data/tokens/mapped_file.h"
#include "kernels/core/cache_files.h"
#include "kernels/core/check.h"
#include "kernels/core/hash/sha256.h"
#include "kernels/core/host.h"
#include "kernels/core/json.h"
#include "kernels/core/json_field.h"
#include "kernels/core/text.h"

namespace gt {
namespace {
namespace fs = std::filesystem;

// Describes a file by its first bytes: "gzip data", "text: Once upon a ti...".
std::string describe_content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  char head[64] = {};
  in.read(head, sizeof head);
  const auto n = static_cast<size_t>(in.gcount());
  if (n == 0) return "an empty file";
  if (n >= 2 && head[0] == '\x1f' && head[1] == '\x8b') return "gzip data";
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(n, 24); ++i) {
    const auto c = static_cast<unsigned char>(head[i]);
    if (c == 0) return "binary data of another format";
    text += c < 32 ? ' ' : static_cast<char>(c);
  }
  return cat(text.starts_with("{") ? "JSON" : "text", " that begins \"", text, "\"");
}

std::string prepare_line(const std::string& input, const std::string& prefix) {
  return cat("gpttrain data prepare --input ", shell_word(input), " --tokenizer TOKENIZER.model --output ",
             shell_word(prefix));
}

struct Walk {  // result for one range of sequences
  int64_t tokens = 0;
  std::string error;
};

Walk walk_sequences(const MappedFile& idx, const MappedFile& bin, const TokenHeader& h, int64_t from, int64_t to) {
  Walk w;
  const int64_t width = width_of(h.type), at_positions = 34 + 4 * h.sequences;
  const uint8_t *lengths = idx.data() + 34, *positions = idx.data() + at_positions;
  const auto end_of = [&](int64_t i) {
    return static_cast<uint64_t>(load_at<int64_t>(positions + 8 * i)) +
           static_cast<uint64_t>(load_at<int32_t>(lengths + 4 * i) * width);
  };
  for (int64_t i = from; i < to; ++i) {
    const int64_t length = load_at<int32_t>(lengths + 4 * i), position = load_at<int64_t>(positions + 8 * i);
    if (length < 0) {
      w.error =
          cat(idx.path(), " byte ", 34 + 4 * i, ": length of sequence ", i, ": expected 0 or more, found ", length);
      return w;
    }
    if (position < 0 || (i > 0 && static_cast<uint64_t>(position) != end_of(i - 1))) {
      w.error =
          cat(idx.path(), " byte ", at_positions + 8 * i, ": position of sequence ", i, ": expected ",
              i == 0 ? "at least 0" : cat(end_of(i - 1), " (the end of the sequence before)"), ", found ", position);
      return w;
    }
    if (position > bin.size() || length * width > bin.size() - position) {
      w.error = cat(
          bin.path(), ": truncated: sequence ", i, " occupies bytes ", position, " to ",
          static_cast<uint64_t>(position) + static_cast<uint64_t>(length * width), ", the file ends at byte ",
          bin.size(), ", ",
          static_cast<uint64_t>(position) + static_cast<uint64_t>(length * width) - static_cast<uint64_t>(bin.size()),
          " bytes are missing; copy or prepare it again");
      return w;
    }
    w.tokens += length;
  }
  return w;
}

}  // namespace

void require_token_pair(const std::string& given, const std::string& prefix) {
  const std::string bin = prefix + ".bin", idx = prefix + ".idx";
  const bool has_bin = fs::is_regular_file(bin), has_idx = fs::is_regular_file(idx);
  if (has_bin && has_idx) return;
  if (has_bin || has_idx)
    fail(Exit::kUsage, has_bin ? idx : bin, ": missing beside ", has_bin ? bin : idx, "; a token file is both",
         has_bin ? ", or begins as llm.c's do (20240520 or 20240801)" : "",
         "; make them with: ", prepare_line("TEXT", prefix));
  if (fs::is_regular_file(given))
    fail(Exit::kUsage, given, ": expected a token file (PREFIX.bin and PREFIX.idx), found ", describe_content(given),
         "; prepare it with: ", prepare_line(given, fs::path(given).replace_extension("").string()));
  if (fs::is_directory(given))
    fail(Exit::kUsage, given,
         ": expected a token file (PREFIX.bin and PREFIX.idx), found a folder; name PREFIX inside it");
  fail(Exit::kUsage, missing_token_files(given), "; make them with: ", prepare_line("TEXT", prefix));
}

TokenHeader check_token_header(const MappedFile& idx, const std::function<void(const std::string&)>& warn) {
  const uint8_t* p = idx.data();
  const std::string& path = idx.path();
  GT_REQUIRE(idx.size() >= 34, Exit::kUsage, path, " byte ", idx.size(),
             ": expected a header of 34 bytes, found the end of the file");
  if (std::memcmp(p, "MMIDIDX\0\0", 9) != 0)
    fail(Exit::kUsage, path, " byte 0: expected the magic 4d4d49444944580000 (MMIDIDX), found ", to_hex(p, 9), ": ",
         describe_content(path));
  const auto version = load_at<uint64_t>(p + 9);
  GT_REQUIRE(version == 1, Exit::kUsage, path, " byte 9: expected version 1, found ", version);
  const int code = p[17];
  GT_REQUIRE(code == 1 || code == 3 || code == 4 || code == 5 || code == 8, Exit::kUsage, path,
             " byte 17: expected a token type 1 u8, ", "3 i16, 4 i32, 5 i64 or 8 u16, found ", code,
             code == 2   ? " (i8)"
             : code == 6 ? " (f64)"
             : code == 7 ? " (f32)"
                         : "");
  TokenHeader h;
  h.type = static_cast<TokenType>(code);
  const auto s = load_at<uint64_t>(p + 18), d = load_at<uint64_t>(p + 26);
  uint64_t tables = 0, documents = 0, expected = 0;
  const bool overflow =
      __builtin_mul_overflow(s, uint64_t{12}, &tables) || __builtin_mul_overflow(d, uint64_t{8}, &documents) ||
      __builtin_add_overflow(tables, documents, &expected) || __builtin_add_overflow(expected, uint64_t{34}, &expected);
  const auto size = static_cast<uint64_t>(idx.size());
  if (overflow || (expected != size && (size < expected || size - expected != s)))
    fail(Exit::kUsage, path, " byte 18: ", s, " sequences and ", d, " document entries need ",
         overflow ? std::string("more than 2^64") : std::to_string(expected), " bytes, found ", size);
  if (expected != size && warn)
    warn(cat(path, ": has a table of modes (multimodal data) of ", s, " bytes, which is not used"));
  GT_REQUIRE(d >= 1, Exit::kUsage, path, " byte 26: expected at least 1 entry in the document table, found 0");
  h.sequences = static_cast<int64_t>(s);
  h.entries = static_cast<int64_t>(d);
  return h;
}

int64_t check_token_tables(const MappedFile& idx, const MappedFile& bin, const TokenHeader& h) {
  const int64_t at = 34 + 12 * h.sequences;
  const auto entry = [&](int64_t i) { return load_at<int64_t>(idx.data() + at + 8 * i); };
  GT_REQUIRE(entry(0) == 0, Exit::kUsage, idx.path(), " byte ", at, ": document table: expected 0 first, found ",
             entry(0));
  const int64_t last = h.entries - 1;
  GT_REQUIRE(entry(last) == h.sequences, Exit::kUsage, idx.path(), " byte ", at + 8 * last,
             ": document table: expected ", h.sequences, " (sequences) last, found ", entry(last));
  for (int64_t i = 1; i <= last; ++i)
    GT_REQUIRE(entry(i) >= entry(i - 1), Exit::kUsage, idx.path(), " byte ", at + 8 * i,
               ": document table: expected at least ", entry(i - 1), " (the entry before), found ", entry(i));
  const int threads = h.sequences > 1'000'000 ? 4 : 1;
  std::array<Walk, 4> part;
  std::vector<std::thread> pool;
  const auto run = [&](int t) {
    part[static_cast<size_t>(t)] =
        walk_sequences(idx, bin, h, h.sequences * t / threads, h.sequences * (t + 1) / threads);
  };
  for (int t = 1; t < threads; ++t) pool.emplace_back(run, t);
  run(0);
  for (auto& t : pool) t.join();
  int64_t tokens = 0;
  for (const Walk& w : part) {
    GT_REQUIRE(w.error.empty(), Exit::kUsage, w.error);
    tokens += w.tokens;
  }
  GT_REQUIRE(bin.size() % width_of(h.type) == 0, Exit::kUsage, bin.path(), " byte ", bin.size(),
             ": expected a multiple of ", width_of(h.type), " bytes (", name_of(h.type), "), found ", bin.size());
  GT_REQUIRE(tokens >= 1, Exit::kUsage, idx.path(), ": expected at least 1 token in ", h.sequences,
             " sequences, found 0");
  return tokens;
}

Fingerprint fingerprint_of(const MappedFile& idx, const MappedFile& bin, std::string idx_sha256) {
  Fingerprint f;
  f.bin_bytes = bin.size();
  f.idx_sha256 = std::move(idx_sha256);
  if (f.idx_sha256.empty()) {
    Sha256 hash;
    hash.update(idx.data(), static_cast<size_t>(idx.size()));
    const auto digest = hash.finish();
    f.idx_sha256 = to_hex(digest.data(), digest.size());
  }
  const size_t mib = 1 << 20, n = static_cast<size_t>(bin.size());
  std::string ends(reinterpret_cast<const char*>(bin.data()), std::min(n, mib));
  const size_t tail = std::min(n, mib);
  ends.append(reinterpret_cast<const char*>(bin.data()) + n - tail, tail);
  f.ends_xxh3 = XXH3_64bits(ends.data(), ends.size());
  return f;
}

CheckCache::CheckCache(const std::string& cache_dir, const MappedFile& idx, const MappedFile& bin)
    : bin_bytes_(bin.size()) {
  if (cache_dir.empty()) return;
  std::error_code ec;
  const std::string name = cat(host_name(), ' ', fs::absolute(idx.path(), ec).string());
  key_ = cat("2 ", name, ' ', idx.identity(), ' ', bin.identity());
  file_ = cat(cache_dir, "/verdict-", sha256_hex(name).substr(0, 32), ".json");
}

bool CheckCache::load(int64_t* tokens, std::string* idx_sha256, std::string* why) const {
  const auto refuse = [&](const std::string& reason) {
    if (why != nullptr) *why = reason;
    return false;
  };
  if (file_.empty()) return refuse("there is no cache");
  std::string problem;
  const std::string text = read_cached(file_, 1 << 20, &problem);
  if (text.empty()) return refuse(problem.empty() ? file_ + ": is empty or missing" : problem);
  try {
    const auto j = parse_json<nlohmann::json>(text, file_);
    if (field<std::string>(j, "key") != key_) return refuse(file_ + ": is of other files");
    const auto count = field<int64_t>(j, "tokens");
    const auto hash = field<std::string>(j, "idx_sha256");
    if (count < 1 || count > bin_bytes_) return refuse(file_ + ": tokens: no such number of them");
    if (hash.size() != 64 || hash.find_first_not_of("0123456789abcdef") != std::string::npos)
      return refuse(file_ + ": idx_sha256: is no SHA-256");
    *tokens = count;
    *idx_sha256 = hash;
    return true;
  } catch (const Error& e) { return refuse(e.what()); }  // an unreadable cache entry is recomputed
}

void CheckCache::store(int64_t tokens, const std::string& idx_sha256) const {
  if (file_.empty()) return;
  const nlohmann::json j = {{"key", key_}, {"tokens", tokens}, {"idx_sha256", idx_sha256}};
  write_cached(file_, j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");  // costs only speed
}

}  // namespace gt
