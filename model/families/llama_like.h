// What Hugging Face calls the keys and tensors that Llama and the families that kept its layout have in common.
#pragma once
#include "model/families/family.h"

namespace gt {

inline void llama_like_keys(HfKeys& k, TransformerConfig& c) {
  k.word("hidden_act", {"silu"});
  k.integer("num_hidden_layers", c.layers, 1, 1024);
  k.integer("hidden_size", c.hidden, 1, 1 << 20);
  k.integer("num_attention_heads", c.heads, 1, 65536);
  k.integer("num_key_value_heads", c.kv_heads, 1, 65536, c.heads);
  k.integer("intermediate_size", c.ffn, 1, 1 << 23);
  k.integer("vocab_size", c.vocab, 2, 1 << 22);
  k.integer("max_position_embeddings", c.seq, 1, 1 << 20);
  k.number("rms_norm_eps", c.norm_eps, 1e-12, 1, 1e-6);
  k.number("rope_theta", c.rope_theta, 1.0001, 1e12, 10000);
  k.none("rope_scaling");
  k.boolean("tie_word_embeddings", c.tied, false);
  k.number("initializer_range", c.init_std, 1e-9, 10, 0.02);
  k.number("attention_dropout", c.attn_dropout, 0, 0.999, 0);
}

inline constexpr NameRule kLlamaNames[] = {
    {"embed.weight", "model.embed_tokens.weight"},
    {"layers.*.norm1.weight", "model.layers.*.input_layernorm.weight"},
    {"layers.*.attn.qkv.weight",
     "model.layers.*.self_attn.q_proj.weight model.layers.*.self_attn.k_proj.weight "
     "model.layers.*.self_attn.v_proj.weight"},
    {"layers.*.attn.qkv.bias",
     "model.layers.*.self_attn.q_proj.bias model.layers.*.self_attn.k_proj.bias model.layers.*.self_attn.v_proj.bias"},
    {"layers.*.attn.out.weight", "model.layers.*.self_attn.o_proj.weight"},
    {"layers.*.attn.out.bias", "model.layers.*.self_attn.o_proj.bias"},
    {"layers.*.norm2.weight", "model.layers.*.post_attention_layernorm.weight"},
    {"layers.*.mlp.up.weight", "model.layers.*.mlp.gate_proj.weight model.layers.*.mlp.up_proj.weight"},
    {"layers.*.mlp.up.bias", "model.layers.*.mlp.gate_proj.bias model.layers.*.mlp.up_proj.bias"},
    {"layers.*.mlp.down.weight", "model.layers.*.mlp.down_proj.weight"},
    {"layers.*.mlp.down.bias", "model.layers.*.mlp.down_proj.bias"},
    {"final_norm.weight", "model.norm.weight"},
    {"head.weight", "lm_head.weight"},
};

}  // namespace gt
