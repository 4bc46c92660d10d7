// Qwen3 (Yang et al. 2025, arXiv 2505.09388): Llama with per-head QK norm and heads of 128 channels at any model width.
#include "autograd/ops.h"
#include "model/families/llama_like.h"

namespace gt {
namespace {

void keys(HfKeys& k, TransformerConfig& c) {
  llama_like_keys(k, c);
  k.integer("head_dim", c.head_dim, 1, 65536, 128);
  k.boolean("attention_bias", c.qkv_bias, false);
  if (k.reading()) c.out_bias = c.qkv_bias;  // one key for both
  k.only("use_sliding_window", false);
}

}  // namespace

extern const Family kQwen3{.name = "qwen3",
                           .model_type = "qwen3",
                           .architecture = "Qwen3ForCausalLM",
                           .prefix = "model.",
                           .defaults = {.tied = false,
                                        .head_dim = 128,
                                        .norm = NormKind::kRms,
                                        .norm_eps = 1e-6,
                                        .position = PositionKind::kRotary,
                                        .rope_theta = 1000000,
                                        .qk_norm = QkNormKind::kHead,
                                        .activation = Activation::kSilu,
                                        .gated = true,
                                        .qkv_bias = false,
                                        .out_bias = false,
                                        .mlp_bias = false},
                           .keys = keys,
                           .names = kLlamaNames};

}  // namespace gt
