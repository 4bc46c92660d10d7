#include "parallel/zero/two_ended_pool.h"

#include <algorithm>

namespace gt {

void TwoEndedPool::reserve(size_t blocks) {
  low_.live.reserve(blocks);
  high_.live.reserve(blocks);
}

Tensor TwoEndedPool::alloc(Shape s, DType t) {
  const int64_t need = std::max(align_up(s.numel() * size_of(t)), kAlign);
  const bool low = low_.live.size() <= high_.live.size();
  std::vector<Block>& live = (low ? low_ : high_).live;
  int64_t at = 0;
  size_t i = 0;
  for (; i < live.size() && live[i].begin - at < need; ++i) at = live[i].end;
  live.insert(live.begin() + static_cast<ptrdiff_t>(i), {at, at + need});
  const int64_t used = extent(low_) + extent(high_);
  GT_CHECK(used <= buffer_.bytes(), "gathered parameters need ", used, " bytes of ", buffer_.bytes());
  peak_ = std::max(peak_, used);
  return {buffer_.data() + (low ? at : buffer_.bytes() - at - need), s, t, buffer_.device()};
}

void TwoEndedPool::free(const Tensor& t) {
  const int64_t at = t.data - buffer_.data();
  for (bool low : {true, false}) {
    std::vector<Block>& live = (low ? low_ : high_).live;
    for (size_t i = 0; i < live.size(); ++i) {
      if ((low ? live[i].begin : buffer_.bytes() - live[i].end) != at) continue;
      live.erase(live.begin() + static_cast<ptrdiff_t>(i));
      return;
    }
  }
  GT_CHECK(false, "tensor is not a live block of this pool");
}

}  // namespace gt
