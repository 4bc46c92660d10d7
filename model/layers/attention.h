// Self-attention, causal or bidirectional: fused qkv, heads split over the tensor axis. Grouped queries (Ainslie et al.
// 2023): query head i reads key and value head i / (heads / kv_heads); of fewer of those than tp ranks each is held by
// several ranks.
#pragma once
#include <algorithm>
#include <cmath>
#include <optional>

#include "model/layers/dropout.h"
#include "model/layers/linear.h"
#include "model/layers/qk_norm.h"
#include "model/layers/rotary.h"

namespace gt {

class SelfAttention : public Module {
 public:
  // qkv is the logical concatenation [Q; K; V]. Each of the three is split over TP ranks separately, so a rank holds
  // [Qt; Kt; Vt].
  // rotary: cos/sin table of the stage; nullptr: no rotary embedding.
  SelfAttention(std::string name, const Build& b, const Constant* rotary)
      : Module(name),
        shape_(local_attention(name, b)),
        drop_(name, b.config().attn_dropout, shape_.heads, b),
        rotary_(rotary),
        qkv_(name + ".qkv", b),
        out_(name + ".out", b) {
    child(qkv_);
    if (b.config().qk_norm != QkNormKind::kNone) child(norm_.emplace(name + ".qk_norm", b));
    child(out_);
  }
  static ops::AttentionShape local_heads(const Build& b) {
    const TransformerConfig& c = b.config();
    return {c.heads / b.tp_size(), std::max<int64_t>(1, c.groups() / b.tp_size()), c.head_width()};
  }
  static ops::AttentionShape local_attention(const std::string& name, const Build& b) {
    const TransformerConfig& c = b.config();
    ops::AttentionShape a = local_heads(b);
    a.window = b.model.module(name + ".core").window;
    a.full = c.mask == MaskKind::kFull;
    a.softcap = static_cast<float>(c.attn_softcap);
    if (c.attn_scalar > 0) a.scale = static_cast<float>(1 / std::sqrt(c.attn_scalar));
    return a;
  }
  const Fp8Scaling* fp8_scaling() const { return qkv_.fp8_scaling(); }  // as ColumnLinear::fp8_scaling
  Var project(Tape& t, const ops::Normed& x, const MicroBatch& mb, ops::Keep keep) { return qkv_(t, x, mb, keep); }
  Var attend(Tape& t, Var qkv, const MicroBatch& mb, ops::Keep keep) {
    if (norm_) qkv = (*norm_)(t, qkv, shape_);
    if (rotary_ != nullptr) qkv = ops::rope(t, qkv, shape_, rotary_->tensor, mb);
    return out_(t,
                mb.cache != nullptr ? ops::cached_attention(t, qkv, shape_, mb)
                                    : ops::self_attention(t, qkv, shape_, mb, drop_(mb)),
                mb, keep);
  }

 private:
  ops::AttentionShape shape_;
  AttentionDropout drop_;
  const Constant* const rotary_;
  ColumnLinear qkv_;
  std::optional<QkNormLayer> norm_;
  RowLinear out_;
};

}  // namespace gt
