// Storage of built sample orders: one file per order in a cache folder, mapped read-only by all ranks of a node; in
// memory when the folder cannot be used. Any process may build at any time: files appear atomically, by rename. A
// stored order is untrusted (kernels/core/cache_files.h): it is used only if it is an order of what it is for.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "data/samples/sample_order.h"
#include "data/tokens/mapped_file.h"

namespace gt {

// "index" in the user's cache folder; "" without one (cache_folder()).
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
  friend StoredOrder stored_order(const IndexStoreOptions&, const std::string&, const OrderShape&,
                                  const std::function<Order()>&);
  std::string path_;
  MappedFile file_;
  Order own_;
  OrderView view_;
  uint64_t hash_ = 0;
  friend bool map_order(const std::string&, const std::string&, const OrderShape&, StoredOrder*, std::string*);
};

// Returns the order named by `key` (any text that determines it) and of this shape: from the cache, else built by
// `build` and stored. A file that is damaged, of another order or not this user's own is not read and replaced. kUsage
// when the folder cannot be used and the order needs more than 2 GiB of memory.
StoredOrder stored_order(const IndexStoreOptions& options, const std::string& key, const OrderShape& shape,
                         const std::function<Order()>& build);

// The file of the order of `key` in a cache folder, and the order that it holds. Returns false if there is none, or
// none that may be used; `problem` (optional) receives why a file was refused, "" if there is none.
std::string order_file(const std::string& cache_dir, const std::string& key);
bool map_order(const std::string& path, const std::string& key, const OrderShape& shape, StoredOrder* out,
               std::string* problem = nullptr);

}  // namespace gt
