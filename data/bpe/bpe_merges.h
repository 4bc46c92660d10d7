// Byte-pair merges (Sennrich et al. 2016): repeatedly merges the neighbouring pair of lowest rank, leftmost on ties,
// until no pair has a merge. O(n log n) for a word of n symbols.
#pragma once
#include <cstdint>
#include <vector>

#include "data/bpe/tokenizer_json.h"

namespace gt {

class BpeMerges {
 public:
  explicit BpeMerges(const std::vector<BpeMerge>& merges);  // by rank; pairs are distinct
  // Appends the merged `symbols`, which are overwritten. Thread-safe.
  void apply(std::vector<int32_t>* symbols, std::vector<int32_t>* out) const;

 private:
  struct Slot {  // of a hash table with open addressing
    uint64_t pair = kEmpty;
    uint32_t rank = 0;
    int32_t result = 0;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Candidate {
    uint32_t rank;
    uint32_t at;  // position of the left symbol
    int32_t result;
  };
  size_t slot_of(uint64_t pair) const;
  const Slot* find(int32_t left, int32_t right) const;

  std::vector<Slot> slots_;  // size: a power of two, at most half full
};

}  // namespace gt
