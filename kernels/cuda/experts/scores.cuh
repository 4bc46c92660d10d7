// Scores of experts (device code), and the check of what routing ops share.
#pragma once
#include <cmath>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/ops.h"

namespace gt::cuda {

// A sigmoid, or what a softmax divides by its sum. most: the largest logit of the token.
__device__ inline float score_of(GateKind kind, float z, float most) {
  return kind == GateKind::kSigmoid ? 1.0f / (1.0f + expf(-z)) : expf(z - most);
}

// Sum of the scores of a token's experts, for all lanes of its warp.
__device__ inline float sum_of_scores(GateKind kind, const float* z, int count, float most) {
  float sum = 0;
  for (int e = threadIdx.x % 32; e < count; e += 32) sum += score_of(kind, z[e], most);
  return warp_sum(sum);
}

inline void check_routing(const char* op, const Tensor& logits, const Tensor& experts) {
  require_dtype(op, "logits", logits, DType::kF32);
  require_dtype(op, "experts", experts, DType::kI32);
  GT_CHECK(experts.shape.rows() == logits.shape.rows() && experts.shape.cols() <= logits.shape.cols(), op, ": logits ",
           to_string(logits.shape), ", experts ", to_string(experts.shape));
}

}  // namespace gt::cuda
