// Private to parallel/zero. Quantization-aware training: turns the whole values of a scope into what int8 codes by row
// can say, in place. One scale a logical row, max |w| / 127, as `gpttrain export --dtype int8` has it.
#pragma once
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/memory.h"
#include "parallel/mesh.h"
#include "parallel/zero/scope_state.h"

namespace gt {

class WeightQuantizer {
 public:
  WeightQuantizer(const ScopeList&, const Mesh&, const Backend&, Stream compute);  // room for the largest scope
  // Collective over tp where a scope holds weights whose rows are cut.
  void apply(const ScopeState&, Tensor flat) const;
  int64_t bytes() const { return limits_.bytes(); }

 private:
  const Mesh& mesh_;
  const Backend& backend_;
  Stream compute_;
  Buffer limits_;
};

}  // namespace gt
