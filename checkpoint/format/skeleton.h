// Metadata of an HDF5 file without its payload. libhdf5 lays out a sparse file elsewhere; the metadata it wrote and the
// offsets of its data sets are returned. Only this module writes through libhdf5, and it never handles tensor data.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/format/box.h"

namespace gt {

struct DataSet {
  std::string name;  // "master/layers.0.attn.qkv.weight": groups before the last '/'
  DType dtype = DType::kF32;
  Shape global;            // of the logical tensor
  std::vector<Box> boxes;  // one: the data set has its shape; several: one-dimensional, concatenated
};

struct ShardHead {  // attributes of the root group
  int64_t step = 0;
  std::string uuid, layout;
  int rank = 0, part = 0;
};

struct Skeleton {
  int64_t file_bytes = 0;
  std::vector<int64_t> offsets;                           // of each data set, in input order, multiples of 4096
  std::vector<std::pair<int64_t, std::string>> metadata;  // offset, bytes; ascending; outside all data sets
};

using TextAttributes = std::vector<std::pair<std::string, std::string>>;  // of the root group

// Lays out a file. Requires: `sets` sorted by name. Deterministic: the same input gives the same bytes. `fallback_dir`:
// folder for the sparse file when /dev/shm cannot hold it; nothing is left behind. Throws kIo.
Skeleton make_skeleton(const std::vector<DataSet>& sets, const ShardHead&, const std::string& fallback_dir);
Skeleton make_skeleton(const std::vector<DataSet>& sets, const TextAttributes&, const std::string& fallback_dir);

}  // namespace gt
