// The range of what enters a linear layer in quantization-aware training: |x| up to `limit` is what int8 codes span.
#pragma once
#include <string>

#include "kernels/core/tensor.h"

namespace gt {

// Both f32 [1] on the device, the memory is the engine's. `limit` stands still within a step, so that it depends on no
// layout: 0 until a first step has seen the activations (they pass unquantized), then a running maximum. `seen`: the
// largest |x| of this step on this rank.
struct QuantRange {
  std::string name;  // "layers.0.attn.qkv.input"
  Tensor limit, seen;
};

}  // namespace gt
