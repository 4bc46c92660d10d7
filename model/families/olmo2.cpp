// OLMo 2 (OLMo team 2025, arXiv 2501.00656): Llama with post-norm, and with QK norm over whole rows before the rotary
// embedding.
#include "autograd/ops.h"
#include "model/families/llama_like.h"
#include "model/families/window_keys.h"

namespace gt {
namespace {

void keys(HfKeys& k, TransformerConfig& c) {
  llama_like_keys(k, c);
  k.number("rms_norm_eps", c.norm_eps, 1e-12, 1, 1e-5);
  derived_head_dim_key(k, c);
  attention_bias_key(k, c);
  full_layer_types_key(k);
}

}  // namespace

extern const Family kOlmo2{.name = "olmo2",
                           .model_type = "olmo2",
                           .architecture = "Olmo2ForCausalLM",
                           .prefix = "model.",
                           .defaults = llama_but([](TransformerConfig& c) {
                             c.norm_place = NormPlace::kPost, c.rope_theta = 500000, c.qk_norm = QkNormKind::kRow;
                           }),
                           .keys = keys,
                           .names = kLlamaNames};

}  // namespace gt
