// Qwen2 and Qwen2.5 (Yang et al. 2024): a Llama with biases of queries, keys and values.
#include "autograd/ops.h"
#include "model/families/llama_like.h"

namespace gt {
namespace {

void keys(HfKeys& k, TransformerConfig& c) {
  llama_like_keys(k, c);
  k.only("use_sliding_window", false);
}

}  // namespace

extern const Family kQwen2{.name = "qwen2",
                           .model_type = "qwen2",
                           .architecture = "Qwen2ForCausalLM",
                           .prefix = "model.",
                           .decisions = {.tied = false,
                                         .norm = NormKind::kRms,
                                         .norm_eps = 1e-6,
                                         .position = PositionKind::kRotary,
                                         .rope_theta = 1000000,
                                         .activation = Activation::kSilu,
                                         .gated = true,
                                         .qkv_bias = true,
                                         .out_bias = false,
                                         .mlp_bias = false},
                           .keys = keys,
                           .names = kLlamaNames};

}  // namespace gt
