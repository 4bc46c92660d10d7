// How the parameters of one scope lie in one flat buffer, and how that buffer is cut over the data-parallel ranks.
// A pure function: no memory, no ranks, no communication.
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
  std::vector<std::vector<FlatSegment>> segments;  // [rank]: its pieces in ascending order; may be empty
};

// Tensors in order, padded at the end to a multiple of align * shards, cut into equal shards.
FlatLayout flat_layout(std::span<const int64_t> numels, int shards, int64_t align = 64);

}  // namespace gt
