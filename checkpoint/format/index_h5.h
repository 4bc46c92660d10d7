// index.h5: every tensor of a step whole, as HDF5 virtual data sets over its shards, for h5py and similar readers.
// Holds names and offsets only; excluded from coverage checks and hashes, and never read by this program.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/format/manifest.h"

namespace gt {

// Slice records of each shard, in the order of Manifest::files.
using ShardRecords = std::vector<std::vector<SliceRecord>>;

// Returns the bytes of the file: /master/ and /optim/ as stored, and /model/<name> of every parameter as a view of its
// master weights where they exist. A missing shard reads as NaN. `fallback_dir`: scratch folder for libhdf5 when
// /dev/shm is full. kIo.
std::string index_h5(const Manifest&, const ShardRecords&, const std::string& fallback_dir);

}  // namespace gt
