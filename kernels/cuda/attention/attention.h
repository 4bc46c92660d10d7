// Our own attention kernels (attention.cu) and the argument checks shared by every attention implementation.
#pragma once
#include "kernels/cuda/dispatch.h"
#include "kernels/ops.h"

namespace gt::cuda {

// Support every storage type, head dims up to 256, dropout and bidirectional attention. Bitwise reproducible.
void own_attention(const Attention&, Stream);
void own_attention_grad(const AttentionGrad&, Stream);

// Scratch bytes of the backward.
inline int64_t own_attention_scratch(const AttentionGrad& a) { return a.batch * a.heads * a.seq * 4; }

// Checks the arguments of either pass; throws on a mismatch.
template <class Args>
void check_attention(const char* op, const Args& a) {
  const int64_t n = a.batch * a.seq;
  GT_CHECK(a.kv_heads > 0 && a.heads % a.kv_heads == 0, op, ": ", a.heads, " heads for ", a.kv_heads, " kv heads");
  GT_CHECK(a.qkv.numel() == n * (a.heads + 2 * a.kv_heads) * a.head_dim && a.out.numel() == n * a.heads * a.head_dim &&
               a.lse.numel() == n * a.heads,
           op, ": qkv ", to_string(a.qkv.shape), " out ", to_string(a.out.shape), " lse ", to_string(a.lse.shape),
           " batch ", a.batch, " seq ", a.seq, " heads ", a.heads, " kv_heads ", a.kv_heads, " head_dim ", a.head_dim);
  GT_CHECK(a.window >= 0 && a.softcap >= 0, op, ": window ", a.window, " softcap ", a.softcap);
  GT_CHECK(a.full ? a.window == 0 && !a.positions : !a.lengths, op,
           a.full ? ": bidirectional, with a window or documents" : ": causal, with lengths");
  if (a.lengths) require_dtype(op, "lengths", a.lengths, DType::kI32);
  GT_CHECK(!a.lengths || a.lengths.numel() == a.batch, op, ": lengths ", to_string(a.lengths.shape), " batch ",
           a.batch);
  GT_CHECK(!a.positions || a.positions.numel() == n, op, ": positions ", to_string(a.positions.shape), " for ", n,
           " tokens");
  if (a.positions) require_dtype(op, "positions", a.positions, DType::kI32);
  require_dtype(op, "out", a.out, a.qkv.dtype);
  require_dtype(op, "lse", a.lse, DType::kF32);
  by_dtype(op, "qkv", a.qkv.dtype, [](auto) {});
}
inline void check_attention_grad(const AttentionGrad& a) {
  check_attention("attention_grad", a);
  GT_CHECK(a.dout.numel() == a.out.numel() && a.dqkv.numel() == a.qkv.numel(), "attention_grad: dout ",
           to_string(a.dout.shape), " dqkv ", to_string(a.dqkv.shape));
  require_dtype("attention_grad", "dout", a.dout, a.qkv.dtype);
  require_dtype("attention_grad", "dqkv", a.dqkv, a.qkv.dtype);
}

}  // namespace gt::cuda
