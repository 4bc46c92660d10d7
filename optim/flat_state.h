// Optimizer state (moments): a flat buffer per FSDP unit and moment, initially 0, laid out like the tensor ranges that
// this rank updates. A state of some tensors holds their elements alone, in the same order. Checkpoint views carry
// parameter names, so the state can be loaded into any layout.
#pragma once
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/memory.h"
#include "parallel/zero/param_store.h"

namespace gt {

// One value of optimizer state per updated element.
struct Moment {
  const char* name;           // in checkpoints: "optim/<name>/<parameter>"
  DType dtype = DType::kF32;  // the only one that optimizer ops read
  bool squares = false;       // sums of squared gradients: comparisons take their square root
};

class FlatState {
 public:
  // members: by store.tensors(); empty: all.
  FlatState(const Moment&, const ParamStore&, const Backend&, Stream, const std::vector<bool>& members = {});

  // State of elements [first, first + count) of a range; no elements if they belong to other tensors. Requires: within
  // one tensor, unless the state covers all.
  Tensor of(const TensorRange& r, int64_t first, int64_t count) const { return at(r.unit, r.at + first, count); }

  void append_views(const ParamStore&, std::vector<ShardView>& out) const;

  int64_t bytes() const;

 private:
  // Elements [begin, begin + count) of what this rank updates of a unit, at element `at` of the buffer.
  struct Run {
    int64_t begin, count, at;
  };
  struct UnitBuffer {
    Buffer memory;
    std::vector<Run> runs;
  };
  Tensor at(int unit, int64_t begin, int64_t count) const;
  Moment moment_;
  std::vector<UnitBuffer> units_;
};

// All moments of an optimizer, in the order of its row in the table (optim/optimizer_rules.h).
class FlatStates {
 public:
  FlatStates(const std::vector<Moment>&, const ParamStore&, const Backend&, Stream, const std::vector<bool>& members);
  std::vector<const FlatState*> all() const;
  std::vector<ShardView> views(const ParamStore&) const;
  int64_t bytes() const;

 private:
  std::vector<FlatState> states_;
};

}  // namespace gt
