// Weight gradients of small layers by our own kernel, split among threads by blocks of tokens.
#pragma once
#include "kernels/ops.h"

namespace gt::cpu {

// Elements of the inner dimension in the next fma chain of a weight gradient, of `left`; see block_depth in gemm.cpp.
inline int64_t gradient_block(int64_t left) {
  constexpr int64_t kBlock = 384;
  return left >= 2 * kBlock ? kBlock : left > kBlock ? (left + 1) / 2 : left;
}

// g.out[m, n] (+)= g.a[k, m]^T g.b[k, n], all f32; k > 0. A thread sums whole blocks of the inner dimension where it
// can: in training these are tokens whose activations and gradients it has computed itself, which are in its caches.
// Sums of blocks are added in order, so the bits do not depend on the number of threads.
void gemm_gradient(const Gemm& g, Stream s);

}  // namespace gt::cpu
