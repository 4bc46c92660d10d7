// Maps the parameters of one FSDP unit to offsets in a flat buffer and splits that buffer into data-parallel shards.
// Pure function: no memory, no ranks, no communication.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace gt {

struct FlatSegment {
  int tensor;            // index into the list of sizes
  int64_t begin, count;  // elements of that tensor
  int64_t at;            // element offset in the flat buffer
  friend bool operator==(const FlatSegment&, const FlatSegment&) = default;
};

struct FlatLayout {
  int64_t size = 0;                                // elements, padding included: a multiple of shards
  int64_t pad = 0;                                 // elements of padding at the end
  int64_t shard = 0;                               // elements a rank
  std::vector<int64_t> offset;                     // of each tensor
  std::vector<std::vector<FlatSegment>> segments;  // [rank]: tensor ranges in its shard, ascending; may be empty
};

// Concatenates tensors of `numels` elements, pads the end to a multiple of align * shards and splits into equal shards.
// Requires: shards >= 1, align >= 1.
FlatLayout flat_layout(std::span<const int64_t> numels, int shards, int64_t align = 64);

}  // namespace gt
