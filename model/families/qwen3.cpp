// Qwen3 (Yang et al. 2025, arXiv 2505.09388): Llama with per-head QK norm and heads of 128 channels at any model width.
#include "autograd/ops.h"
#include "model/families/llama_like.h"
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
}

}  // namespace

extern const Family kQwen3{.name = "qwen3",
                           .model_type = "qwen3",
                           .architecture = "Qwen3ForCausalLM",
                           .prefix = "model.",
                           .defaults = llama_but([](TransformerConfig& c) {
                             c.head_dim = 128, c.norm_eps = 1e-6, c.rope_theta = 1e6, c.qk_norm = QkNormKind::kHead;
                           }),
                           .keys = keys,
                           .names = kLlamaNames};

}  // namespace gt
