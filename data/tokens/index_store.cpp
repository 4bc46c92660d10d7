#include "data/tokens/index_store.h"

#include <unistd.h>
#include <xxhash.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <thread>

#include "data/tokens/files.h"
#include "kernels/core/cache_files.h"
#include "kernels/core/check.h"
#include "kernels/core/hash/sha256.h"

namespace gt {
namespace {

struct Header {  // 64 bytes, little-endian, followed by documents, positions, shuffle
  char magic[8] = {'G', 'T', 'O', 'R', 'D', 'E', 'R', '2'};
  uint64_t documents = 0, samples = 0, hash = 0;
  uint8_t key[32] = {};  // SHA-256
};
static_assert(sizeof(Header) == 64);

uint64_t hash_of(const OrderView& v) {
  uint64_t h = XXH3_64bits(v.documents.data(), v.documents.size_bytes());
  h = XXH3_64bits_withSeed(v.positions.data(), v.positions.size_bytes(), h);
  return XXH3_64bits_withSeed(v.shuffle.data(), v.shuffle.size_bytes(), h);
}

auto digest_of(const std::string& key) {
  Sha256 hash;
  hash.update(key.data(), key.size());
  return hash.finish();
}

void write_order(const std::string& path, const std::string& key, const OrderView& v, uint64_t hash) {
  Header h;
  h.documents = v.documents.size();
  h.samples = v.shuffle.size();
  h.hash = hash;
  std::memcpy(h.key, digest_of(key).data(), sizeof h.key);
  const std::string temporary =
      cat(path, ".tmp.", ::getpid(), '.', std::hash<std::thread::id>{}(std::this_thread::get_id()));
  ::unlink(temporary.c_str());  // left by a process that was killed
  Fd fd = create_own(temporary);
  write_all(fd.get(), &h, sizeof h, temporary);
  write_all(fd.get(), v.documents.data(), v.documents.size_bytes(), temporary);
  write_all(fd.get(), v.positions.data(), v.positions.size_bytes(), temporary);
  write_all(fd.get(), v.shuffle.data(), v.shuffle.size_bytes(), temporary);
  sync_and_close(fd.release(), temporary);
  rename_file(temporary, path);
}

}  // namespace

bool map_order(const std::string& path, const std::string& key, const OrderShape& shape, StoredOrder* out,
               std::string* problem) {
  const auto refuse = [&](std::string why) {
    if (problem != nullptr) *problem = std::move(why);
    return false;
  };
  const CachedFile opened = open_cached(path);
  if (!opened.fd) return refuse(opened.problem);
  MappedFile file(opened.fd, path);
  Header h;
  const Header good;
  if (file.size() < static_cast<int64_t>(sizeof h)) return refuse(path + ": ends inside of its header");
  std::memcpy(&h, file.data(), sizeof h);
  if (std::memcmp(h.magic, good.magic, sizeof h.magic) != 0) return refuse(path + ": is of another version");
  if (std::memcmp(h.key, digest_of(key).data(), sizeof h.key) != 0) return refuse(path + ": is another order");
  if (h.documents >> 31 || h.samples >> 32) return refuse(path + ": has too many rows");
  const uint64_t expected = sizeof h + 4 * h.documents + 8 * (h.samples + 1) + 4 * h.samples;
  if (expected != static_cast<uint64_t>(file.size())) return refuse(path + ": has a wrong size");
  const auto* words = reinterpret_cast<const uint32_t*>(file.data() + sizeof h);
  OrderView v{{reinterpret_cast<const int32_t*>(words), h.documents},
              {words + h.documents, 2 * (h.samples + 1)},
              {words + h.documents + 2 * (h.samples + 1), h.samples}};
  if (hash_of(v) != h.hash) return refuse(path + ": has a wrong hash");
  if (!is_order(v, shape)) return refuse(path + ": is no order of these sequences");
  if (problem != nullptr) problem->clear();
  out->path_ = path;
  out->file_ = std::move(file);
  out->view_ = v;
  out->hash_ = h.hash;
  return true;
}

std::string default_cache_dir() {
  const std::string folder = cache_folder();
  return folder.empty() ? "" : folder + "/index";
}

std::string order_file(const std::string& cache_dir, const std::string& key) {
  return cat(cache_dir, "/order-", sha256_hex(key), ".gti");
}

StoredOrder stored_order(const IndexStoreOptions& options, const std::string& key, const OrderShape& shape,
                         const std::function<Order()>& build) {
  StoredOrder o;
  std::string path, why;
  if (!options.cache_dir.empty()) {
    path = order_file(options.cache_dir, key);
    if (map_order(path, key, shape, &o)) return o;
    why = make_cache_folder(options.cache_dir);
    if (why.empty() && ::access(options.cache_dir.c_str(), W_OK) != 0) why = "the folder cannot be written";
    for (double waited = 0; !options.builder && why.empty() && waited < options.wait_seconds; waited += 0.05) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      if (map_order(path, key, shape, &o)) return o;
    }
  }
  o.own_ = build();
  o.view_ = o.own_.view();
  o.hash_ = hash_of(o.view_);
  if (options.cache_dir.empty()) return o;
  const auto bytes = static_cast<int64_t>(o.view_.documents.size_bytes() + o.view_.positions.size_bytes() +
                                          o.view_.shuffle.size_bytes());
  if (why.empty()) try {
      write_order(path, key, o.view_, o.hash_);
      StoredOrder mapped;
      if (map_order(path, key, shape, &mapped, &why)) return mapped;
      if (why.empty()) why = "what was written cannot be read back";
    } catch (const Error& e) { why = e.what(); }
  GT_REQUIRE(bytes <= int64_t{2} << 30, Exit::kUsage, "cache folder ", options.cache_dir, ": ", why,
             ", and the order of samples needs ", bytes,
             " bytes, too many to keep in memory; set XDG_CACHE_HOME to a folder of your own with that much space");
  if (options.warn)
    options.warn(cat("cache folder ", options.cache_dir, " is not used: ", why, "; the order of samples (", bytes,
                     " bytes) is kept in memory"));
  return o;
}

}  // namespace gt
