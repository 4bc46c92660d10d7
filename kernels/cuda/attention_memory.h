// What cuDNN's attention needs beside its tensors, by shape: for memory plans, where no device is asked. The forward
// needs nothing.
#pragma once
#include "kernels/cuda/attention_cudnn.h"

namespace gt::cuda {

// In the graph itself: row sums of dout * out, and the sums of dq in f32, which the deterministic backward does
// without.
constexpr int64_t graph_bytes(const AttentionCall& c) {
  const int64_t rows = c.batch * c.heads * c.seq;
  return !c.backward ? 0 : 4 * rows + (c.deterministic ? 0 : 4 * rows * c.head_dim);
}

// In the engine (found by asking cuDNN 9.19 for an H200, tests/cuda): deterministic, scores of whole heads in the type of
// qkv; with grouped queries, every query head's dk and dv; some bytes of its own.
constexpr int64_t engine_bytes(const AttentionCall& c) {
  if (!c.backward) return 0;
  const int64_t padded = (c.seq + 63) / 64 * 64;
  return (c.deterministic ? 2 * c.batch * c.heads * padded * padded : 0) +
         (c.kv_heads < c.heads ? 4 * c.batch * c.heads * c.seq * c.head_dim : 0) + 256;
}

}  // namespace gt::cuda
