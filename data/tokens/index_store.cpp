#include "data/tokens/index_store.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "data/tokens/files.h"
#include "kernels/core/check.h"
#include "kernels/core/hash/sha256.h"

namespace gt {
namespace {
namespace fs = std::filesystem;

struct Header {  // 64 bytes, little-endian, followed by documents, positions, shuffle
  char magic[8] = {'G', 'T', 'O', 'R', 'D', 'E', 'R', '1'};
  uint64_t documents = 0, samples = 0, hash = 0;
  uint64_t reserved[4] = {};
};
static_assert(sizeof(Header) == 64);

uint64_t hash_of(const OrderView& v) {
  uint64_t h = XXH3_64bits(v.documents.data(), v.documents.size_bytes());
  h = XXH3_64bits_withSeed(v.positions.data(), v.positions.size_bytes(), h);
  return XXH3_64bits_withSeed(v.shuffle.data(), v.shuffle.size_bytes(), h);
}

void write_order(const std::string& path, const OrderView& v, uint64_t hash) {
  Header h;
  h.documents = v.documents.size();
  h.samples = v.shuffle.size();
  h.hash = hash;
  const std::string temporary =
      cat(path, ".tmp.", ::getpid(), '.', std::hash<std::thread::id>{}(std::this_thread::get_id()));
  Fd fd = open_file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
  write_all(fd.get(), &h, sizeof h, temporary);
  write_all(fd.get(), v.documents.data(), v.documents.size_bytes(), temporary);
  write_all(fd.get(), v.positions.data(), v.positions.size_bytes(), temporary);
  write_all(fd.get(), v.shuffle.data(), v.shuffle.size_bytes(), temporary);
  sync_and_close(fd.release(), temporary);
  rename_file(temporary, path);
}

}  // namespace

bool map_order(const std::string& path, StoredOrder* out) {
  std::error_code ec;
  if (!fs::is_regular_file(path, ec)) return false;
  MappedFile file(path);
  Header h;
  const Header good;
  if (file.size() < static_cast<int64_t>(sizeof h)) return false;
  std::memcpy(&h, file.data(), sizeof h);
  if (std::memcmp(h.magic, good.magic, sizeof h.magic) != 0 || h.documents >> 31 || h.samples >> 32) return false;
  const uint64_t expected = sizeof h + 4 * h.documents + 8 * (h.samples + 1) + 4 * h.samples;
  if (expected != static_cast<uint64_t>(file.size())) return false;
  const auto* words = reinterpret_cast<const uint32_t*>(file.data() + sizeof h);
  OrderView v{{reinterpret_cast<const int32_t*>(words), h.documents},
              {words + h.documents, 2 * (h.samples + 1)},
              {words + h.documents + 2 * (h.samples + 1), h.samples}};
  if (hash_of(v) != h.hash) return false;
  out->path_ = path;
  out->file_ = std::move(file);
  out->view_ = v;
  out->hash_ = h.hash;
  return true;
}

std::string default_cache_dir() {
  if (const char* x = std::getenv("XDG_CACHE_HOME"); x != nullptr && *x != '\0')
    return std::string(x) + "/gpttrain/index";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return std::string(home) + "/.cache/gpttrain/index";
  return (fs::temp_directory_path() / "gpttrain-index").string();
}

StoredOrder stored_order(const IndexStoreOptions& options, const std::string& key,
                         const std::function<Order()>& build) {
  StoredOrder o;
  std::error_code ec;
  std::string path;
  bool writable = false;
  if (!options.cache_dir.empty()) {
    path = cat(options.cache_dir, "/order-", sha256_hex(key), ".gti");
    if (map_order(path, &o)) return o;
    fs::create_directories(options.cache_dir, ec);
    writable = ::access(options.cache_dir.c_str(), W_OK) == 0;
    for (double waited = 0; !options.builder && writable && waited < options.wait_seconds; waited += 0.05) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      if (map_order(path, &o)) return o;
    }
  }
  o.own_ = build();
  o.view_ = o.own_.view();
  o.hash_ = hash_of(o.view_);
  const auto bytes = static_cast<int64_t>(o.view_.documents.size_bytes() + o.view_.positions.size_bytes() +
                                          o.view_.shuffle.size_bytes());
  std::string why = options.cache_dir.empty() ? "" : "the folder cannot be written";
  if (writable) {
    try {
      write_order(path, o.view_, o.hash_);
      StoredOrder mapped;
      if (map_order(path, &mapped)) return mapped;
      why = "what was written cannot be read back";
    } catch (const Error& e) { why = e.what(); }
  }
  if (why.empty()) return o;
  GT_REQUIRE(bytes <= int64_t{2} << 30, Exit::kUsage, "data.cache_dir ", options.cache_dir, ": ", why,
             ", and the order of samples needs ", bytes,
             " bytes, too many to keep in memory; name a folder with that much space");
  if (options.warn)
    options.warn(cat("data.cache_dir ", options.cache_dir, ": ", why, "; the order of samples (", bytes,
                     " bytes) is kept in memory"));
  return o;
}

}  // namespace gt
