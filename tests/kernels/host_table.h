// Tables of segments in the memory of the CPU, made on the spot.
#pragma once
#include <deque>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/segments.h"

namespace gt::test {

// What one segment is made of; tensors that are not given are not there.
struct SegmentOf {
  Tensor master, grad, m, v, value;
  float weight_decay = 0;
  int32_t group = 0, counted = 1;
};

class HostTables {
 public:
  // Good for as long as this object. Types are those of the first segment that has such a tensor.
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
