// Attention of packed queries, keys and values, for tests.
#pragma once
#include "kernels/ops.h"

namespace gt::test {

inline PackedQkv packed(const Tensor& qkv, const AttentionSpec& a) { return {qkv, a.heads, a.kv_heads, a.head_dim}; }
inline Attention packed_attention(const Tensor& qkv, const Tensor& out, const Tensor& lse, const AttentionSpec& a) {
  const PackedQkv in = packed(qkv, a);
  return {in.q, in.k, in.v, out, lse, a};
}
inline AttentionGrad packed_attention_grad(const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& dout,
                                           const Tensor& dqkv, const AttentionSpec& a) {
  const PackedQkv in = packed(qkv, a), d = packed(dqkv, a);
  return {in.q, in.k, in.v, out, lse, dout, d.q, d.k, d.v, a};
}
// Whole sequences.
inline AttentionSpec whole_sequences(int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                     float scale, int64_t window = 0, float softcap = 0) {
  return {.batch = batch,
          .queries = seq,
          .keys = seq,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .scale = scale,
          .window = window,
          .softcap = softcap};
}

}  // namespace gt::test
