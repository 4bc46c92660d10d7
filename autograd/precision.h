// Mixed precision: which tensors of a model are 16-bit, by level. Ops compute in the dtypes of their inputs.
// Accumulators, statistics and losses are f32 at every level, parameter gradients f32 or bf16.
#pragma once
#include <array>
#include <cstdint>

#include "kernels/core/tensor.h"

namespace gt {

// O0: f32 everywhere. O1: f32 weights and residual stream; ops of class kLow (GT_OPS) get 16-bit inputs and 16-bit
// copies of weights, rounded once a step. O2: 16-bit parameters and residual stream, f32 master weights; norms keep f32
// weights. O3: all 16-bit without master weights; small updates are lost, which this level exists to demonstrate.
enum class AmpLevel : uint8_t { kO0, kO1, kO2, kO3 };
// FP8 GEMMs in the linear layers of each block, with per-tensor scales from the amax of this tensor (current) or of
// previous steps (delayed).
enum class Fp8Recipe : uint8_t { kOff, kCurrent, kDelayed };
enum class Qat : uint8_t { kOff, kInt8 };             // quantization-aware training
enum class FrozenWeights : uint8_t { kSame, kInt8 };  // format of frozen linear layers: of the others, or int8
constexpr std::array<const char*, 4> names_of(AmpLevel) { return {"O0", "O1", "O2", "O3"}; }
constexpr std::array<const char*, 3> names_of(Fp8Recipe) { return {"off", "current", "delayed"}; }
constexpr std::array<const char*, 2> names_of(Qat) { return {"off", "int8"}; }
constexpr std::array<const char*, 2> names_of(FrozenWeights) { return {"same", "int8"}; }

struct Precision {
  int level = 0;
  DType compute_dtype = DType::kBF16;
  bool keep_norm = true;     // O2, O3: norm weights are f32
  bool int8 = false;         // quantization-aware training: linear layers and tables compute with int8 fake-quantized
                             // values
  bool frozen_int8 = false;  // frozen linear layers of the blocks (LoRA) hold int8 weights
  Fp8Recipe fp8 = Fp8Recipe::kOff;  // O2
  bool fp8_skip_ends = false;       // but not in the first and the last block
  bool masters = true;              // O2, O3: 16-bit weights have f32 master weights; else they are trained directly

  DType linear() const { return level >= 1 ? compute_dtype : DType::kF32; }  // of linear layers and the head
  DType table() const { return stream(); }                                   // of token and position embeddings
  DType norm() const { return level >= 2 && !keep_norm ? compute_dtype : DType::kF32; }
  DType stream() const {
    return level >= 2 ? compute_dtype : DType::kF32;
  }  // residual stream and boundary tensors of stages
};

}  // namespace gt
