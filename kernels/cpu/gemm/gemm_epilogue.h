// GEMM epilogues on a finished tile while it is in cache: GELU and its gradient. Row functions on f32, compiled per
// instruction set with identical results (same operations in the same order).
#pragma once
#include <cstdint>

namespace gt::cpu {

// GELU, tanh form, absolute error <= 1e-6 (relative above 1): x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)).
struct EpilogueRows {
  void (*gelu)(const float* z, float* out, int64_t n);         // out = gelu(z)
  void (*gelu_grad)(const float* z, float* inout, int64_t n);  // inout *= gelu'(z)
};

EpilogueRows epilogue_scalar();
EpilogueRows epilogue_avx2();
EpilogueRows epilogue_avx512();
EpilogueRows epilogue_rows();  // of the current instruction set

}  // namespace gt::cpu
