// Quantizer state of a linear layer's input in quantization-aware training: int8 spans |x| <= `limit`.
#pragma once
#include <string>

#include "kernels/core/tensor.h"

namespace gt {

// Both are f32 [1] on the device, owned by the engine. `limit` is constant within a step, so that it depends on no
// layout. It is 0 until a first step has observed the activations (which pass unquantized), then a running maximum.
// step_amax: largest |x| of this step on this rank.
struct QuantizerState {
  std::string name;  // "layers.0.attn.qkv.input"
  Tensor limit, step_amax;
};

}  // namespace gt
