// Rotary cos/sin table, read by all blocks of a stage. The engine allocates its memory.
#pragma once
#include <functional>

#include "kernels/core/rope.h"
#include "model/module.h"

namespace gt {

// Constant f32 tensor, not trained.
struct Constant {
  Shape shape;
  std::function<void(float*)> fill;
  Tensor tensor = {};  // no data until the engine allocates it
};

// cos and sin of each position's angles, [positions, channels of a head].
inline Constant rotary_table(const TransformerConfig& c, double theta, const RopeScaling& scaling) {
  const auto frequencies = rope_inverse_frequencies(c.head_width(), theta, scaling);
  const double factor = rope_attention_factor(scaling);
  return {{c.seq, c.head_width()},
          [frequencies, factor, rows = c.seq](float* out) { fill_rope_table(frequencies, factor, rows, out); }};
}

}  // namespace gt
