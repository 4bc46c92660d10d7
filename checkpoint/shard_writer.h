// One rank's shard on its way to disk: rank-00000.h5 and its index. Knows views, devices and bytes; no other rank.
#pragma once
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/block_stream.h"
#include "checkpoint/index_file.h"
#include "checkpoint/skeleton.h"
#include "checkpoint/vfs.h"
#include "kernels/core/device.h"

namespace gt {

// The rectangles of one tensor that a rank stores, ascending by place.
struct StoredTensor {
  DataSet set;
  int blocks = 1;
  Device device;
  std::vector<const std::byte*> data;  // of each box of `set`, on the device; null: asked for when its turn comes
};

// The views with `save` set, by name. Throws kInternal when views of one name disagree on shape or dtype.
std::vector<StoredTensor> stored_tensors(std::span<const ShardView>);

// What a rank writes, cut into files of at most part_bytes where it can be: rectangles stay whole, so a file holds at
// least one. At least one part, which may be empty. kUsage: too many.
constexpr size_t kMostParts = 1000;
std::vector<std::vector<StoredTensor>> cut_into_parts(std::vector<StoredTensor>, int64_t part_bytes);

std::string shard_name(int rank, int part = 0);  // rank-00000.h5, rank-00000.001.h5

// Values of a whole tensor that is in no memory yet: f32, row-major, asked for once a file that holds some of it, in
// the order of names.
using FetchTensor = std::function<std::vector<float>(const std::string& name)>;

struct ShardJob {
  std::string dir;
  ShardHead head;
  Uuid uuid{};
  std::map<std::string, uint32_t> ids;  // of the tensors in the manifest
  bool require_finite = true;
  FetchTensor fetch;  // for null data
  bool sha256 = false, readback = false;
  WriteOptions how;
};

// Writes and syncs both files, and reads the shard again when that is wanted. Returns the SHA-256 of the .h5 as hex, ""
// when it is not wanted. Throws IoError.
std::string write_shard(Vfs&, const ShardJob&, const std::vector<StoredTensor>&, const DeviceApi&, Stream);

}  // namespace gt
