// index.h5: every tensor of a step whole, as HDF5 virtual data sets over its shards, for h5py and its relatives. Holds
// names and places only; outside of coverage and hashes, and never read by us.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/manifest.h"

namespace gt {

// The records of each shard, in the order of Manifest::files.
using ShardRecords = std::vector<std::vector<SliceRecord>>;

// Bytes of the file: /master/…, /optim/… as they are stored, and /model/<name> of every parameter as a view of its
// master where it has one. A shard that is missing reads as NaN. `fallback_dir`: where libhdf5 works when /dev/shm has
// no room. kIo.
std::string index_h5(const Manifest&, const ShardRecords&, const std::string& fallback_dir);

}  // namespace gt
