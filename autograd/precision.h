// Mixed precision: which tensors of a model are stored in half, by level. What an op computes in follows from what it
// is given; accumulators, statistics and losses are f32 at every level, gradients of parameters f32 or bf16.
#pragma once
#include "kernels/core/tensor.h"

namespace gt {

// O0: f32 everywhere. O1: weights are trained in f32; ops of the class kLow (GT_OPS) get half inputs, and half copies
// of weights that are rounded once a step; the residual stream is f32. O2: parameters and residual stream in half, f32
// masters are what is trained; norms keep f32 weights. O3: all in half and no masters: small updates are lost, which is
// what it is there to show.
struct Precision {
  int level = 0;
  DType half = DType::kBF16;
  bool keep_norm = true;  // O2, O3: weights of norms are f32
  bool int8 = false;      // quantization-aware training: linear layers and tables compute with what int8 codes can say
  bool fp8 = false;       // O2: products of a block's linear layers read numbers of 8 bits
  bool fp8_delayed = false;    // scaled by the largest elements of steps before, not of this tensor
  bool fp8_skip_ends = false;  // but not in the first block and in the last
  bool masters = true;    // O2, O3: half weights have f32 masters; else they are themselves what is trained

  DType linear() const { return level >= 1 ? half : DType::kF32; }  // of linear layers and of the head
  DType table() const { return stream(); }                          // of token and position embeddings
  DType norm() const { return level >= 2 && !keep_norm ? half : DType::kF32; }
  DType stream() const { return level >= 2 ? half : DType::kF32; }  // residual stream and what stages send
};

}  // namespace gt
