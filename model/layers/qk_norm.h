// RMSNorm of queries and keys before the rotary embedding. Per head (Qwen3; Henry et al. 2020, arXiv 2010.04245, with a
// weight per channel instead of one scale): all heads share the weights. Per row (OLMo 2, arXiv 2501.00656): a weight
// for each channel of each head, and one sum per row over all TP ranks.
#pragma once
#include "autograd/ops.h"
#include "model/module.h"
#include "parallel/tensor/collective_ops.h"

namespace gt {

class QkNormLayer : public Module {
 public:
  QkNormLayer(std::string name, const Build& b)
      : Module(std::move(name)),
        kind_(b.config().qk_norm),
        weight_(param("weight", b)),
        eps_(static_cast<float>(b.config().norm_eps)),
        gamma_offset_(b.config().gamma_offset()),
        tp_(b.tp()) {}
  // qkv: packed as for attention; `heads`: those of this rank.
  Var operator()(Tape& t, Var qkv, ops::AttentionShape heads) {
    if (kind_ == QkNormKind::kRow) return ops::qk_row_norm(t, qkv, heads, weight_, eps_, tp_);
    return ops::qk_norm(t, qkv, heads, weight_, eps_, gamma_offset_);
  }

 private:
  const QkNormKind kind_;
  Parameter& weight_;
  const float eps_, gamma_offset_;
  ProcessGroup& tp_;
};

}  // namespace gt
