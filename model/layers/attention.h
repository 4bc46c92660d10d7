// Causal self-attention: fused qkv, heads split over the tensor axis. Grouped queries (Ainslie et al. 2023): query head i
// reads key and value head i / (heads / kv_heads); of fewer of those than tp ranks each is held by several ranks.
#pragma once
#include <algorithm>

#include "model/layers/dropout.h"
#include "model/layers/linear.h"

namespace gt {

class SelfAttention : public Module {
 public:
  // qkv is the logical concatenation [Q; K; V]; each of the three is split over tp on its own, so a rank holds [Qt; Kt;
  // Vt]. dropout: of the probabilities.
  SelfAttention(std::string name, int64_t hidden, int64_t heads, int64_t kv_heads, float out_std, double dropout,
                const Build& b)
      : Module(name),
        shape_{heads / b.tp_size(), std::max<int64_t>(1, kv_heads / b.tp_size()), hidden / heads},
        drop_(name, dropout, shape_.heads, b),
        qkv_(name + ".qkv", hidden, (heads + 2 * kv_heads) * shape_.head_dim, b, ShardSpec::qkv(heads, kv_heads)),
        out_(name + ".out", hidden, hidden, out_std, b) {
    child(qkv_);
    child(out_);
  }
  const CodeScale* codes() const { return qkv_.codes(); }  // as ColumnLinear::codes
  Var project(Tape& t, const ops::Normed& x, ops::Keep keep) { return qkv_(t, x, keep); }
  Var attend(Tape& t, Var qkv, const MicroBatch& mb, ops::Keep keep) {
    return out_(t, mb.cache != nullptr ? ops::cached_attention(t, qkv, shape_, mb)
                                       : ops::causal_attention(t, qkv, shape_, mb, drop_(mb)), keep);
  }

 private:
  ops::AttentionShape shape_;
  AttentionDropout drop_;
  ColumnLinear qkv_;
  RowLinear out_;
};

}  // namespace gt
