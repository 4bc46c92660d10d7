// Types of the memory of one rank, by address: what the step last wrote there.
#pragma once
#include <cstddef>
#include <map>
#include <optional>

#include "kernels/core/tensor.h"
#include "parallel/proof/layout_type.h"

namespace gt::proof {

class Shadow {
 public:
  void write(const Tensor&, const LayoutType&);
  void forget(const Tensor&);  // as if nothing had been written there
  // Calls change(type) for everything written in the tensor's range.
  template <class F>
  void change(const Tensor& t, F f) {
    cut(begin(t));
    cut(end(t));
    for (auto it = runs_.lower_bound(begin(t)); it != runs_.end() && it->first < end(t); ++it) f(it->second.type);
  }
  // Type of a tensor; nothing if parts of it differ or were never written. Zeros take the type of the rest.
  std::optional<LayoutType> read(const Tensor&) const;
  bool written(const Tensor&) const;  // any part of it

  int64_t call = 0;                         // number of the call that writes from now on
  int64_t last_write(const Tensor&) const;  // number of the last call that wrote a part of it; 0: none

 private:
  struct Run {
    uintptr_t end;
    LayoutType type;
    int64_t call;
  };
  static uintptr_t begin(const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data); }
  static uintptr_t end(const Tensor& t) { return begin(t) + static_cast<uintptr_t>(t.bytes()); }
  void cut(uintptr_t at);          // a run ends here, if one covers it
  std::map<uintptr_t, Run> runs_;  // by begin; disjoint
};

}  // namespace gt::proof
