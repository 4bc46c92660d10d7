// Private to parallel/zero. Allocator for the few blocks of a sliding window. It alternates between the two ends of the
// buffer, so that two neighbours never leave a hole too small for the third. Same calls, same addresses.
#pragma once
#include <vector>

#include "kernels/core/memory.h"

namespace gt {

class TwoEndedPool {
 public:
  TwoEndedPool() = default;
  explicit TwoEndedPool(Buffer b) : buffer_(std::move(b)) {}
  // Allocates from the end with fewer live blocks, first fit.
  Tensor alloc(Shape, DType);
  void free(const Tensor&);
  // Buffer bytes that the same calls need: the peak of the total of both ends.
  int64_t high_water() const { return peak_; }
  void reserve(size_t blocks);

 private:
  // Offsets from the block's own end of the buffer, sorted by begin.
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
