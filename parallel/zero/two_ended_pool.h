// Private to parallel/zero. Room for the few blocks of a moving window: one from the start of the buffer, the next from
// its end, so that two neighbours never leave a hole that is too small for the third. Same calls, same addresses.
#pragma once
#include <vector>

#include "kernels/core/memory.h"

namespace gt {

class TwoEndedPool {
 public:
  TwoEndedPool() = default;
  explicit TwoEndedPool(Buffer b) : buffer_(std::move(b)) {}
  // From the end that holds fewer live blocks, in the first hole seen from there.
  Tensor alloc(Shape, DType);
  void free(const Tensor&);
  // Bytes that a buffer needs for the same calls: most that both ends took together.
  int64_t high_water() const { return peak_; }
  void reserve(size_t blocks);

 private:
  // Distances from the block's own end, sorted by begin.
  struct Block {
    int64_t begin, end;
  };
  struct End {
    std::vector<Block> live;
  };
  int64_t extent(const End& e) const { return e.live.empty() ? 0 : e.live.back().end; }

  Buffer buffer_;
  End low_, high_;
  int64_t peak_ = 0;
};

}  // namespace gt
