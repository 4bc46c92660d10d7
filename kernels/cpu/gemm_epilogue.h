// What GEMM does to a finished tile while it is in cache: GELU, its gradient, rounding to bf16. Rows of f32, one
// function a job, compiled per instruction set with equal results on all of them (same operations in the same order).
#pragma once
#include <cstdint>

namespace gt::cpu {

// GELU by the tanh form, absolute error <= 1e-6 (relative, above 1): x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)).
struct EpilogueRows {
  void (*gelu)(const float* z, float* out, int64_t n);         // out = gelu(z)
  void (*gelu_grad)(const float* z, float* inout, int64_t n);  // inout *= gelu'(z)
};

EpilogueRows epilogue_scalar();
EpilogueRows epilogue_avx2();
EpilogueRows epilogue_avx512();
EpilogueRows epilogue_rows();  // of the current instruction set

}  // namespace gt::cpu
