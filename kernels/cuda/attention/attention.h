// Our own attention kernels (attention.cu) and the argument checks shared by every attention implementation.
#pragma once
#include <algorithm>

#include "kernels/cuda/dispatch.h"
#include "kernels/ops.h"

namespace gt::cuda {

// Support every storage type, head dims up to 256, dropout and bidirectional attention. Bitwise reproducible.
void own_attention(const Attention&, Stream);
void own_attention_grad(const AttentionGrad&, Stream);

// Scratch bytes of the backward.
inline int64_t own_attention_scratch(const AttentionGrad& a) { return a.lse.numel() * 4; }

// Checks that a view has rows for the tokens and columns for the heads.
inline void check_heads(const char* op, const char* name, const HeadView& v, DType t, int64_t tokens, int64_t width) {
  require_dtype(op, name, v.rows, t);
  GT_CHECK(v.rows.numel() == tokens * v.pitch() && v.column >= 0 && v.column + width <= v.pitch(), op, ": ", name, " ",
           to_string(v.rows.shape), " from column ", v.column, " on, for ", tokens, " tokens of ", width);
}

// Checks the arguments of either pass; throws on a mismatch.
template <class Args>
void check_attention(const char* op, const Args& args) {
  const AttentionSpec& a = args.spec;
  const int64_t n = a.batch * a.queries;
  GT_CHECK(a.kv_heads > 0 && a.heads % a.kv_heads == 0, op, ": ", a.heads, " heads for ", a.kv_heads, " kv heads");
  GT_CHECK(a.window >= 0 && a.softcap >= 0, op, ": window ", a.window, " softcap ", a.softcap);
  GT_CHECK(a.first_query >= 0 && a.first_key >= 0, op, ": queries from ", a.first_query, " keys from ", a.first_key);
  GT_CHECK(a.full ? a.window == 0 && !a.documents : !a.lengths, op,
           a.full ? ": bidirectional, with a window or documents" : ": causal, with lengths");
  GT_CHECK(!a.drop || a.drop.seq >= std::max(a.first_query + a.queries, a.first_key + a.keys), op, ": dropout of ",
           a.drop.seq, " tokens");
  if (a.lengths) require_dtype(op, "lengths", a.lengths, DType::kI32);
  GT_CHECK(!a.lengths || a.lengths.numel() == a.batch, op, ": lengths ", to_string(a.lengths.shape), " batch ",
           a.batch);
  if (a.documents) require_dtype(op, "documents", a.documents, DType::kI32);
  GT_CHECK(!a.documents || a.documents.numel() == n, op, ": documents ", to_string(a.documents.shape), " for ", n,
           " tokens");
  const DType t = args.q.rows.dtype;
  check_heads(op, "q", args.q, t, n, a.heads * a.head_dim);
  check_heads(op, "k", args.k, t, a.batch * a.keys, a.kv_heads * a.head_dim);
  check_heads(op, "v", args.v, t, a.batch * a.keys, a.kv_heads * a.head_dim);
  GT_CHECK(args.out.numel() == n * a.heads * a.head_dim && args.lse.numel() == n * a.heads, op, ": out ",
           to_string(args.out.shape), " lse ", to_string(args.lse.shape), " batch ", a.batch, " queries ", a.queries,
           " heads ", a.heads, " head_dim ", a.head_dim);
  require_dtype(op, "out", args.out, t);
  require_dtype(op, "lse", args.lse, DType::kF32);
  by_dtype(op, "q", t, [](auto) {});
}
inline void check_attention_grad(const AttentionGrad& args) {
  constexpr const char* kOp = "attention_grad";
  check_attention(kOp, args);
  const AttentionSpec& a = args.spec;
  const DType t = args.q.rows.dtype;
  check_heads(kOp, "dq", args.dq, t, a.batch * a.queries, a.heads * a.head_dim);
  check_heads(kOp, "dk", args.dk, t, a.batch * a.keys, a.kv_heads * a.head_dim);
  check_heads(kOp, "dv", args.dv, t, a.batch * a.keys, a.kv_heads * a.head_dim);
  GT_CHECK(args.dout.numel() == args.out.numel(), kOp, ": dout ", to_string(args.dout.shape));
  require_dtype(kOp, "dout", args.dout, t);
}

}  // namespace gt::cuda
