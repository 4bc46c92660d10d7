// Private to parallel/zero. FP8 copies of the weights of FP8 GEMMs (Parameter::fp8): rowwise and columnwise
// (transposed) E4M3 data, requantized whenever values are updated or gathered. Scaling is per logical tensor: the amax
// is reduced over tp, so the scale does not depend on the layout. The optimizer's kernel cannot quantize in its own
// pass: the amax is known only after every shard was updated, and shards split rows.
#pragma once
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/memory.h"
#include "parallel/mesh.h"
#include "parallel/zero/unit_state.h"

namespace gt {

class Fp8Weights {
 public:
  Fp8Weights(const UnitList&, const Mesh&, const Backend&, Stream compute);

  // Bytes of FP8 data and scale_inv that a unit needs besides its values; 0 if it has no FP8 weights.
  static int64_t bytes_of(const UnitSpec&);

  struct Unit {
    const UnitState* state;
    Tensor values;         // unsharded
    std::byte* workspace;  // workspace, bytes_of() bytes
  };
  // Quantizes the FP8 weights of these units and points Parameter::fp8_data at the results. Collective over tp: one
  // amax all-reduce for all units.
  void quantize(std::span<const Unit>) const;
  void quantize_kept() const { quantize(kept_); }  // units whose values this rank keeps unsharded
  // Clears Parameter::fp8_data of the unit's parameters.
  static void hide(const UnitState&);

  int64_t bytes() const { return amax_.bytes(); }

 private:
  const Mesh& mesh_;
  const Backend& backend_;
  Stream compute_;
  std::vector<Unit> kept_;
  Buffer amax_;  // f32 [FP8 weights on this rank]: the amax of each
};

}  // namespace gt
