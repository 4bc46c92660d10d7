// Synthetic ranks for checkpoint tests: parameters of odd shapes, sharded over tp, pp and dp as ParamStore does. Values
// are a pure function of (name, logical element). Filling uses logical_offset(), the code under test its own
// rectangles, so each checks the other.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/store/vfs.h"
#include "parallel/comm/process_group.h"

namespace gt::ckpt {

struct Param {
  std::string name;
  Shape full;
  ShardSpec shard;
  bool padded = false;  // dim 0 is padded to a multiple of 8 before sharding
};

// 1-D, 2-D, fused blocks of 3, a split along dim 1, padding, rows of one element, three dimensions.
std::vector<Param> odd_model();

struct Layout {
  int tp = 1, pp = 1, dp = 1, zero = 1;  // zero 0: each dp rank holds everything and saves its share
  int ep = 1;                            // of the mesh alone
  int world() const { return tp * pp * dp; }
};

// Parameters of one rank. `groups`: one flat buffer each.
struct Rank {
  Rank(const std::vector<Param>&, const Layout&, int rank,
       std::vector<std::string> groups = {"master", "optim/exp_avg"});
  void fill(uint32_t version = 0);
  void poison();  // NaN everywhere
  // "" when every element equals what fill() wrote and padding is 0.
  std::string difference(uint32_t version = 0) const;
  std::vector<std::vector<float>> memory;
  std::vector<ShardView> views;
};
float value_of(const std::string& name, int64_t element, uint32_t version = 0);

// Device API on plain host memory.
const DeviceApi& host_device();

// Runs body(rank, mesh) on threads; returns each rank's error ("" if none), prefixed with its exit code: "2: text".
std::vector<std::string> run_ranks(const Layout&, const std::function<void(int, const Mesh&)>& body);

TrainState some_state(int64_t step);

// Temporary folder, removed with its contents whatever their permissions. In memory if possible (thousands of fsyncs),
// on disk on request.
struct TempDir {
  explicit TempDir(bool on_disk = false);
  ~TempDir();
  std::string path;
};

std::string slurp(const std::string& path);
void spill(const std::string& path, const std::string& bytes);

// Saves odd_model() (or `model`) under a layout; throws the first rank's error.
void save(const std::string& dir, const Layout&, int64_t step, const std::vector<Param>& model = odd_model(),
          int keep = 0);
// Loads into new, poisoned ranks and compares. Returns the errors or differences of all ranks in one text; "" when
// equal.
std::string load_and_compare(const std::string& dir, const Layout&, int64_t step, const std::string& which = "auto",
                             const std::vector<Param>& model = odd_model());

}  // namespace gt::ckpt
