// OLMo 2 (OLMo team 2025, arXiv 2501.00656): Llama with post-norm, and with QK norm over whole rows before the rotary
// embedding.
#include "autograd/ops.h"
#include "model/families/llama_like.h"

namespace gt {
namespace {

void keys(HfKeys& k, TransformerConfig& c) {
  llama_like_keys(k, c);
  k.number("rms_norm_eps", c.norm_eps, 1e-12, 1, 1e-5);
  k.boolean("attention_bias", c.qkv_bias, false);
  if (k.reading()) c.out_bias = c.qkv_bias;  // one key for both
}

constexpr NameRule kNames[] = {
    {"embed.weight", "model.embed_tokens.weight"},
    {"layers.*.attn.qkv.weight",
     "model.layers.*.self_attn.q_proj.weight model.layers.*.self_attn.k_proj.weight "
     "model.layers.*.self_attn.v_proj.weight"},
    {"layers.*.attn.qkv.bias",
     "model.layers.*.self_attn.q_proj.bias model.layers.*.self_attn.k_proj.bias model.layers.*.self_attn.v_proj.bias"},
    {"layers.*.attn.qk_norm.weight", "model.layers.*.self_attn.q_norm.weight model.layers.*.self_attn.k_norm.weight"},
    {"layers.*.attn.out.weight", "model.layers.*.self_attn.o_proj.weight"},
    {"layers.*.attn.out.bias", "model.layers.*.self_attn.o_proj.bias"},
    {"layers.*.post_norm1.weight", "model.layers.*.post_attention_layernorm.weight"},
    {"layers.*.mlp.up.weight", "model.layers.*.mlp.gate_proj.weight model.layers.*.mlp.up_proj.weight"},
    {"layers.*.mlp.down.weight", "model.layers.*.mlp.down_proj.weight"},
    {"layers.*.post_norm2.weight", "model.layers.*.post_feedforward_layernorm.weight"},
    {"final_norm.weight", "model.norm.weight"},
    {"head.weight", "lm_head.weight"},
};

}  // namespace

extern const Family kOlmo2{.name = "olmo2",
                           .model_type = "olmo2",
                           .architecture = "Olmo2ForCausalLM",
                           .prefix = "model.",
                           .defaults = {.tied = false,
                                        .norm = NormKind::kRms,
                                        .norm_place = NormPlace::kPost,
                                        .position = PositionKind::kRotary,
                                        .rope_theta = 500000,
                                        .qk_norm = QkNormKind::kRow,
                                        .activation = Activation::kSilu,
                                        .gated = true,
                                        .qkv_bias = false,
                                        .out_bias = false,
                                        .mlp_bias = false},
                           .keys = keys,
                           .names = kNames};

}  // namespace gt
