// Private to parallel/zero. Quantization-aware training: fake-quantizes the unsharded values of a unit to int8, in
// place. One scale per logical row, max |w| / 127, as in `gpttrain export --dtype int8`.
#pragma once
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/memory.h"
#include "parallel/mesh.h"
#include "parallel/zero/unit_state.h"

namespace gt {

class WeightQuantizer {
 public:
  WeightQuantizer(const UnitList&, const Mesh&, const Backend&, Stream compute);  // workspace for the largest unit
  // Collective over tp if the unit has weights whose rows are split (dim 1).
  void apply(const UnitState&, Tensor flat) const;
  int64_t bytes() const { return amax_.bytes(); }

 private:
  const Mesh& mesh_;
  const Backend& backend_;
  Stream compute_;
  Buffer amax_;
};

}  // namespace gt
