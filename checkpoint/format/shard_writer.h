// Writes one rank's shard: rank-00000.h5 and its index. Handles views, devices and bytes; involves no other rank.
#pragma once
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/format/block_stream.h"
#include "checkpoint/format/index_file.h"
#include "checkpoint/format/skeleton.h"
#include "checkpoint/store/vfs.h"
#include "kernels/core/device.h"

namespace gt {

// Rectangles of one tensor that a rank stores, in ascending order of their offsets.
struct StoredTensor {
  DataSet set;
  int blocks = 1;
  Device device;
  std::vector<const std::byte*> data;  // one per box of `set`, in device memory; null: fetched when it is written
};

// Collects the views with `save` set, by name. kInternal when views of one name disagree on shape or dtype.
std::vector<StoredTensor> stored_tensors(std::span<const ShardView>);

constexpr size_t kMostParts = 1000;
// Splits what a rank writes into files of at most part_bytes where possible. Rectangles stay whole, so each file holds
// at least one. Returns at least one part, which may be empty. kUsage: more than kMostParts.
std::vector<std::vector<StoredTensor>> cut_into_parts(std::vector<StoredTensor>, int64_t part_bytes);

std::string shard_name(int rank, int part = 0);  // rank-00000.h5, rank-00000.001.h5

// Returns elements [first, first + count) of a tensor that is not in memory: f32, row-major. Called in name order, with
// ascending ranges within a tensor.
using FetchTensor = std::function<std::vector<float>(const std::string& name, int64_t first, int64_t count)>;

struct ShardJob {
  std::string dir;
  ShardHead head;
  Uuid uuid{};
  std::map<std::string, uint32_t> ids;  // tensor name -> index in the manifest
  bool require_finite = true;
  FetchTensor fetch;  // for null data
  WriteOptions how;
};

// Writes and syncs both files; re-reads the shard with `how.readback`. Returns the .h5's hash by `how.hash` as hex, or
// "". Throws IoError.
std::string write_shard(Vfs&, const ShardJob&, const std::vector<StoredTensor>&, const DeviceApi&, Stream);

}  // namespace gt
