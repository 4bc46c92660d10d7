// Segment tables in CPU memory, for tests.
#pragma once
#include <deque>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/segments.h"

namespace gt::test {

// Tensors of one segment; omitted ones are absent.
struct SegmentOf {
  Tensor master, grad, m, v, value;
  float weight_decay = 0;
  int32_t group = 0, counted = 1;
};

class HostTables {
 public:
  // Valid as long as this object. Dtypes are those of the first segment that has the tensor.
  SegmentTable table(const std::vector<SegmentOf>& list) {
    const auto type = [&](Tensor SegmentOf::*t) {
      for (const SegmentOf& s : list)
        if (s.*t) return (s.*t).dtype;
      return DType::kF32;
    };
    SegmentTables& made = made_.emplace_back();
    made.open(type(&SegmentOf::master), type(&SegmentOf::grad), type(&SegmentOf::value));
    for (const SegmentOf& s : list)
      made.add({.master = s.master.data,
                .grad = s.grad.data,
                .m = s.m.as<float>(),
                .v = s.v.as<float>(),
                .value = s.value.data,
                .count = s.grad.numel(),
                .group = s.group,
                .weight_decay = s.weight_decay,
                .counted = s.counted});
    const Backend& cpu = cpu_backend();
    made.upload(static_cast<int64_t>(list.size()), {}, *cpu.device);
    return made.tables().front();
  }

 private:
  std::deque<SegmentTables> made_;
};

}  // namespace gt::test
