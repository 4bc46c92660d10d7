// Llama (Touvron et al. 2023): pre-norm RMSNorm, rotary positions, grouped-query attention, gated SiLU, no biases,
// untied head.
#include "model/families/llama_like.h"
#include "model/families/window_keys.h"

namespace gt {
namespace {

void keys(HfKeys& k, TransformerConfig& c) {
  llama_like_keys(k, c);
  k.integer("head_dim", c.head_dim, 1, 65536, c.hidden / c.heads);
  attention_bias_key(k, c);
  full_layer_types_key(k);
  k.boolean("mlp_bias", c.mlp_bias, false);
}

}  // namespace

extern const Family kLlama{.name = "llama",
                           .model_type = "llama",
                           .architecture = "LlamaForCausalLM",
                           .prefix = "model.",
                           .defaults = kLlamaDefaults,
                           .keys = keys,
                           .names = kLlamaNames};

}  // namespace gt
