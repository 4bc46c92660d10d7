// RMSNorm of queries and keys in front of rotary positions. Of each head (Qwen3; Henry et al. 2020, arXiv 2010.04245,
// with a weight a channel instead of one scale): heads share the weights. Of the whole row (OLMo 2, arXiv 2501.00656):
// a weight for each channel of each head, and one sum over all tp ranks a row.
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
        tp_(b.tp()) {}
  // qkv as it is packed for attention, of `heads` of this rank.
  Var operator()(Tape& t, Var qkv, ops::AttentionShape heads) {
    if (kind_ == QkNormKind::kRow) return ops::qk_row_norm(t, qkv, heads, weight_, eps_, tp_);
    return ops::qk_norm(t, qkv, heads, weight_, eps_);
  }

 private:
  const QkNormKind kind_;
  Parameter& weight_;
  const float eps_;
  ProcessGroup& tp_;
};

}  // namespace gt
