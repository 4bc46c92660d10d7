// Workspace of cuDNN attention by shape, for memory plans made without a device. The forward needs none.
#pragma once
#include "kernels/cuda/attention/attention_cudnn.h"

namespace gt::cuda {

// Bytes of the graph itself: row sums of dout * out in f32; f32 dq accumulators unless deterministic.
constexpr int64_t graph_bytes(const AttentionCall& c) {
  const int64_t rows = c.batch * c.heads * c.seq;
  return !c.backward ? 0 : 4 * rows + (c.deterministic ? 0 : 4 * rows * c.head_dim);
}

// Bytes of the engine (measured with cuDNN 9.19 for an H200, tests/cuda). Deterministic: scores of whole heads in the
// type of qkv. Grouped queries: dk and dv of every query head. Plus a few fixed bytes.
constexpr int64_t engine_bytes(const AttentionCall& c) {
  if (!c.backward) return 0;
  const int64_t padded = (c.seq + 63) / 64 * 64;
  return (c.deterministic ? 2 * c.batch * c.heads * padded * padded : 0) +
         (c.kv_heads < c.heads ? 4 * c.batch * c.heads * c.seq * c.head_dim : 0) + 256;
}

}  // namespace gt::cuda
