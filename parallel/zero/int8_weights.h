// Private to parallel/zero. Frozen weights that are held in int8 (Parameter::int8): quantized once, when they are
// initialized or loaded, and dequantized into the compute dtype whenever their unit is used. One scale per logical row,
// max |w| / 127, so that values do not depend on the layout.
#pragma once
#include "kernels/backend.h"
#include "parallel/mesh.h"
#include "parallel/zero/unit_state.h"

namespace gt {

class Int8Weights {
 public:
  Int8Weights(const Mesh& mesh, const Backend& backend, Stream compute)
      : mesh_(mesh), backend_(backend), compute_(compute) {}

  // Number of scales of a unit's int8 weights: their rows; 0 if it has none.
  static int64_t rows_of(const UnitSpec&);

  // Sets codes and scales of a unit from its unsharded f32 values. Collective over tp if the unit has weights whose
  // rows are split (dim 1). Blocks.
  void quantize(UnitState&, Tensor values) const;
  // values = codes * scale; both unsharded.
  void dequantize(const UnitState&, Tensor codes, Tensor values) const;

 private:
  // Calls f(index, first row) for each weight of the unit.
  template <class F>
  static void each_weight(const UnitSpec& spec, F f) {
    for (size_t i = 0, row = 0; i < spec.params.size(); ++i) {
      f(i, static_cast<int64_t>(row));
      row += static_cast<size_t>(spec.params[i]->local_shape[0]);
    }
  }

  const Mesh& mesh_;
  const Backend& backend_;
  Stream compute_;
};

}  // namespace gt
