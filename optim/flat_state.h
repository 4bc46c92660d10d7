// One optimizer state (a moment): a flat f32 buffer per FSDP unit, initially 0, laid out like the tensor ranges that
// this rank updates. A state of some tensors holds their elements alone, in the same order. Checkpoint views carry
// parameter names, so the state can be loaded into any layout.
#pragma once
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/memory.h"
#include "parallel/zero/param_store.h"

namespace gt {

class FlatState {
 public:
  // members: by store.tensors(); empty: all.
  FlatState(const ParamStore&, const Backend&, Stream, const std::vector<bool>& members = {});

  // State of elements [first, first + count) of a range; no elements if they belong to other tensors. Requires: within
  // one tensor, unless the state covers all.
  Tensor of(const TensorRange& r, int64_t first, int64_t count) const { return at(r.unit, r.at + first, count); }

  // Views named "optim/<name>/<parameter>".
  void append_views(const std::string& name, const ParamStore&, std::vector<ShardView>& out) const;

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
  std::vector<UnitBuffer> units_;
};

}  // namespace gt
