#include "parallel/pipeline/buffer_plan.h"

#include <algorithm>

#include "parallel/pipeline/check_schedule.h"

namespace gt {
namespace {

// Allocates numbers; `in_turn` reuses the one released longest ago, else the smallest.
class NumberAllocator {
 public:
  NumberAllocator(int at_least, bool in_turn) : count_(at_least), in_turn_(in_turn) {
    for (int i = 0; i < at_least; ++i) free_.push_back(i);
  }
  int take() {
    if (free_.empty()) return count_++;
    const auto it = in_turn_ ? free_.begin() : std::min_element(free_.begin(), free_.end());
    const int n = *it;
    free_.erase(it);
    return n;
  }
  void give_back(int n) {
    if (n >= 0) free_.push_back(n);
  }
  int count() const { return count_; }

 private:
  int count_;
  bool in_turn_;
  std::vector<int> free_;
};

}  // namespace

BufferPlan plan_buffers(const PipelineSchedule& s, int rank) {
  const bool forward_only = is_forward_only(s);
  const auto m = static_cast<size_t>(s.microbatches);
  BufferPlan out;
  out.of.resize(static_cast<size_t>(s.stages / s.ranks) * m);
  NumberAllocator slots(forward_only ? 2 : 0, forward_only), buffers(0, false);
  const auto at = [&](int stage, int k) -> BufferAssignment& {
    return out.of[static_cast<size_t>(stage / s.ranks) * m + static_cast<size_t>(k)];
  };
  const auto here = [&](int stage) { return stage >= 0 && stage < s.stages && s.rank_of(stage) == rank; };
  for (const Action& a : s.program[static_cast<size_t>(rank)]) {
    if (a.microbatch < 0) continue;
    BufferAssignment& p = at(a.stage, a.microbatch);
    switch (a.act) {
      case Act::kRecvForward: p.input = buffers.take(); break;
      case Act::kRecvBackward: p.upstream = buffers.take(); break;
      case Act::kForward:
        p.slot = slots.take();
        if (!forward_only) break;
        buffers.give_back(p.input);
        if (here(a.stage - 1)) slots.give_back(at(a.stage - 1, a.microbatch).slot);  // its output has been read
        if (!here(a.stage + 1)) slots.give_back(p.slot);
        break;
      case Act::kBackward:
      case Act::kBackwardWeight:
        slots.give_back(p.slot);
        buffers.give_back(p.input);
        buffers.give_back(p.upstream);
        break;
      default: break;
    }
  }
  out.slots = slots.count();
  out.buffers = buffers.count();
  return out;
}

}  // namespace gt
