// Qwen3 with routed experts (Yang et al. 2025, arXiv 2505.09388): softmax over all experts, the weights of the chosen
// ones normalized in the released models.
#include "model/families/llama_like.h"
#include "model/families/moe_keys.h"
#include "model/families/window_keys.h"

namespace gt {
namespace {

void keys(HfKeys& k, TransformerConfig& c) {
  llama_like_keys(k, c);
  k.integer("head_dim", c.head_dim, 1, 65536, 128);
  attention_bias_key(k, c);
  k.only("use_sliding_window", false);
  k.unused({"sliding_window", "max_window_layers"});
  full_layer_types_key(k);
  sparse_keys(k, c);
  expert_width_key(k, c, 768);
  expert_count_key(k, c, 128);
  moe_keys(k, c, 8);
  k.boolean("norm_topk_prob", c.moe.normalize, false);
}

}  // namespace

extern const Family kQwen3Moe{.name = "qwen3_moe",
                              .model_type = "qwen3_moe",
                              .architecture = "Qwen3MoeForCausalLM",
                              .prefix = "model.",
                              .defaults = llama_but([](TransformerConfig& c) {
                                c.head_dim = 128, c.norm_eps = 1e-6, c.rope_theta = 1e6, c.qk_norm = QkNormKind::kHead;
                                c.moe.experts = 128, c.moe.top_k = 8;
                              }),
                              .keys = keys,
                              .names = kRoutedNames};

}  // namespace gt
