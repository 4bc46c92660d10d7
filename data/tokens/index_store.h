// Storage of built sample orders: one file per order in a cache folder, mapped read-only by all ranks of a node; in
// memory when the folder is not writable. Any process may build at any time: files appear atomically, by rename.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "data/samples/sample_order.h"
#include "data/tokens/mapped_file.h"

namespace gt {

// $XDG_CACHE_HOME/gpttrain/index, else ~/.cache/gpttrain/index, else a folder in the system's temporary directory.
std::string default_cache_dir();

struct IndexStoreOptions {
  std::string cache_dir;      // empty: keep orders in memory
  bool builder = true;        // false: another process of this node builds; wait for its file
  double wait_seconds = 600;  // how long a non-builder waits before it builds the order itself
  std::function<void(const std::string&)> warn;
};

class StoredOrder {  // an order, mapped or owned
 public:
  OrderView view() const { return view_; }
  uint64_t hash() const { return hash_; }            // XXH3-64 of the three tables, compared across ranks
  const std::string& path() const { return path_; }  // empty: in memory

 private:
  friend StoredOrder stored_order(const IndexStoreOptions&, const std::string&, const std::function<Order()>&);
  std::string path_;
  MappedFile file_;
  Order own_;
  OrderView view_;
  uint64_t hash_ = 0;
  friend bool map_order(const std::string& path, StoredOrder* out);
};

// Returns the order named by `key` (any text that determines it): from the cache, else built by `build` and stored. A
// damaged file is rebuilt. kUsage when the folder is not writable and the order needs more than 2 GiB of memory.
StoredOrder stored_order(const IndexStoreOptions& options, const std::string& key, const std::function<Order()>& build);

}  // namespace gt
