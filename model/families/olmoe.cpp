// OLMoE (Muennighoff et al. 2024, arXiv 2409.02060): Llama with QK norm over whole rows and routed experts, whose
// weights are a softmax over all of them, not normalized.
#include "model/families/llama_like.h"
#include "model/families/moe_keys.h"
#include "model/families/window_keys.h"

namespace gt {
namespace {

void keys(HfKeys& k, TransformerConfig& c) {
  llama_like_keys(k, c);
  k.number("rms_norm_eps", c.norm_eps, 1e-12, 1, 1e-5);
  derived_head_dim_key(k, c);
  attention_bias_key(k, c);
  full_layer_types_key(k);
  k.none("clip_qkv");
  expert_count_key(k, c, 64);
  moe_keys(k, c, 8);
  k.boolean("norm_topk_prob", c.moe.normalize, false);
}

}  // namespace

extern const Family kOlmoe{.name = "olmoe",
                           .model_type = "olmoe",
                           .architecture = "OlmoeForCausalLM",
                           .prefix = "model.",
                           .defaults = llama_but([](TransformerConfig& c) {
                             c.qk_norm = QkNormKind::kRow;
                             c.moe.experts = 64, c.moe.top_k = 8, c.moe.normalize = false;
                           }),
                           .keys = keys,
                           .names = kRoutedNames};

}  // namespace gt
