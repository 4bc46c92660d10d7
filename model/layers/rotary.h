// The table of rotary positions, of cosines and sines, that all blocks of a stage read. The engine gives it memory.
#pragma once
#include <functional>

#include "kernels/core/rope.h"
#include "model/module.h"

namespace gt {

// Numbers that no training changes, f32.
struct Constant {
  Shape shape;
  std::function<void(float*)> fill;
  Tensor tensor = {};  // without data until the engine has given it some
};

// cos and sin of each position's angles, [positions, channels of a head].
inline Constant rotary_table(const TransformerConfig& c) {
  const auto frequencies = rope_inverse_frequencies(c.head_width(), c.rope_theta, c.rope);
  const double factor = rope_attention_factor(c.rope);
  return {{c.seq, c.head_width()},
          [frequencies, factor, rows = c.seq](float* out) { fill_rope_table(frequencies, factor, rows, out); }};
}

}  // namespace gt
