// Hugging Face keys and tensor names shared by Llama and the families that kept its layout.
#pragma once
#include "autograd/ops.h"
#include "model/families/family.h"

namespace gt {

// Parameters of RoPE scaling, in `rope_scaling` or `rope_parameters`.
inline void rope_scaling_keys(HfKeys& k, TransformerConfig& c) {
  RopeScaling& r = c.rope;
  k.choice({"rope_type", "type"}, r.kind);
  if (r.kind == RopeKind::kDefault) return;
  k.number("factor", r.factor, 1, 1e6, HfKeys::kRequired);
  if (r.kind == RopeKind::kLinear) return;
  if (r.kind == RopeKind::kLlama3) {
    k.number("low_freq_factor", r.low_freq_factor, 1e-6, 1e6, HfKeys::kRequired);
    k.number("high_freq_factor", r.high_freq_factor, 1e-6, 1e6, HfKeys::kRequired);
    if (r.high_freq_factor <= r.low_freq_factor)
      k.problem(
          cat("high_freq_factor: ", r.high_freq_factor, ", expected more than low_freq_factor, ", r.low_freq_factor));
    return k.integer("original_max_position_embeddings", r.original_positions, 1, 1 << 24);
  }
  k.number("beta_fast", r.beta_fast, 1e-6, 1e6, 32);
  k.number("beta_slow", r.beta_slow, 1e-6, 1e6, 1);
  if (k.reading() || r.attention_factor > 0) k.number("attention_factor", r.attention_factor, 0, 1e6, 0);
  if (k.reading() || !r.truncate) k.boolean("truncate", r.truncate, true);
  k.integer("original_max_position_embeddings", r.original_positions, 1, 1 << 24, c.seq);
  if (k.reading()) k.none("mscale"), k.none("mscale_all_dim");
}

constexpr double kLowestRopeTheta = 1.0001, kHighestRopeTheta = 1e12;

inline void whole_heads(HfKeys& k) {
  double turned = 1;
  k.number("partial_rotary_factor", turned, 0, 1, 1);
  if (turned != 1) k.problem(cat("partial_rotary_factor: ", turned, ", expected 1"));
}

// The contents of `rope_parameters`, read alone.
inline void rope_parameter_keys(HfKeys& k, TransformerConfig& c) {
  k.number("rope_theta", c.rope_theta, kLowestRopeTheta, kHighestRopeTheta, c.rope_theta);
  whole_heads(k);
  rope_scaling_keys(k, c);
}

// Rotary positions: `rope_theta` and `rope_scaling`, or, since transformers 5, both in `rope_parameters`, which `newer`
// reads. What is written is the older form, which every version reads.
inline void rope_keys(HfKeys& k, TransformerConfig& c, double standard_theta = 10000,
                      void (*newer)(HfKeys&, TransformerConfig&) = rope_parameter_keys) {
  k.number("rope_theta", c.rope_theta, kLowestRopeTheta, kHighestRopeTheta, standard_theta);
  const auto scaling = [&](HfKeys& s) { rope_scaling_keys(s, c); };
  if (!k.reading()) {
    if (c.rope.kind == RopeKind::kDefault) return k.none("rope_scaling");
    k.object("rope_scaling", scaling);
    return;
  }
  c.rope = {};
  whole_heads(k);
  if (!k.object("rope_parameters", [&](HfKeys& p) { newer(p, c); })) k.object("rope_scaling", scaling);
  k.unused({"rope_scaling"});  // beside rope_parameters
}

// Sizes, and what else all of these families call alike; not their activation and positions.
inline void decoder_keys(HfKeys& k, TransformerConfig& c) {
  k.integer("num_hidden_layers", c.layers, 1, 1024);
  k.integer("hidden_size", c.hidden, 1, 1 << 20);
  k.integer("num_attention_heads", c.heads, 1, 65536);
  k.integer("num_key_value_heads", c.kv_heads, 1, 65536, c.heads);
  k.integer("intermediate_size", c.ffn, 1, 1 << 23);
  k.integer("vocab_size", c.vocab, 2, 1 << 22);
  k.integer("max_position_embeddings", c.seq, 1, 1 << 20);
  k.number("rms_norm_eps", c.norm_eps, 1e-12, 1, 1e-6);
  k.boolean("tie_word_embeddings", c.tied, c.tied);
  k.number("initializer_range", c.init_std, 1e-9, 10, 0.02);
  k.number("attention_dropout", c.attn_dropout, 0, 0.999, 0);
}

inline void llama_like_keys(HfKeys& k, TransformerConfig& c) {
  k.word("hidden_act", {"silu"});
  decoder_keys(k, c);
  rope_keys(k, c);
}

// `head_dim` of families that derive it from the other sizes unless it is given.
inline void derived_head_dim_key(HfKeys& k, TransformerConfig& c) {
  const int64_t derived = c.heads > 0 ? c.hidden / c.heads : 0;
  const bool given = k.reading() ? k.presence("head_dim") == HfKeys::Presence::kValue : c.head_dim != derived;
  if (given) k.integer("head_dim", c.head_dim, 1, 65536, derived);
}

// One key for all biases of attention.
inline void attention_bias_key(HfKeys& k, TransformerConfig& c) {
  k.boolean("attention_bias", c.qkv_bias, false);
  if (k.reading()) c.out_bias = c.qkv_bias;
}

// Llama's and Mistral's: RMSNorm in front, rotary positions, gated SiLU, no biases, an untied head.
inline constexpr TransformerConfig kLlamaDefaults{.tied = false,
                                                  .norm = NormKind::kRms,
                                                  .position = PositionKind::kRotary,
                                                  .activation = Activation::kSilu,
                                                  .gated = true,
                                                  .qkv_bias = false,
                                                  .out_bias = false,
                                                  .mlp_bias = false,
                                                  .lora = {.separate_qkv = true}};

// Llama's decisions, changed by `differ`, a callable void(TransformerConfig&).
template <class Differ>
constexpr TransformerConfig llama_but(Differ differ) {
  TransformerConfig c = kLlamaDefaults;
  differ(c);
  return c;
}

inline constexpr NameRule kLlamaNames[] = {
    {"embed.weight", "model.embed_tokens.weight"},
    {"layers.*.norm1.weight", "model.layers.*.input_layernorm.weight"},
    {"layers.*.attn.qkv.weight",
     "model.layers.*.self_attn.q_proj.weight model.layers.*.self_attn.k_proj.weight "
     "model.layers.*.self_attn.v_proj.weight"},
    {"layers.*.attn.qkv.bias",
     "model.layers.*.self_attn.q_proj.bias model.layers.*.self_attn.k_proj.bias model.layers.*.self_attn.v_proj.bias"},
    {"layers.*.attn.qk_norm.weight", "model.layers.*.self_attn.q_norm.weight model.layers.*.self_attn.k_norm.weight"},
    {"layers.*.attn.out.weight", "model.layers.*.self_attn.o_proj.weight"},
    {"layers.*.attn.out.bias", "model.layers.*.self_attn.o_proj.bias"},
    {"layers.*.post_norm1.weight", "model.layers.*.post_attention_layernorm.weight"},
    {"layers.*.norm2.weight", "model.layers.*.post_attention_layernorm.weight"},
    {"layers.*.mlp.up.weight", "model.layers.*.mlp.gate_proj.weight model.layers.*.mlp.up_proj.weight"},
    {"layers.*.mlp.up.bias", "model.layers.*.mlp.gate_proj.bias model.layers.*.mlp.up_proj.bias"},
    {"layers.*.mlp.down.weight", "model.layers.*.mlp.down_proj.weight"},
    {"layers.*.mlp.down.bias", "model.layers.*.mlp.down_proj.bias"},
    {"layers.*.post_norm2.weight", "model.layers.*.post_feedforward_layernorm.weight"},
    {"final_norm.weight", "model.norm.weight"},
    {"head.weight", "lm_head.weight"},
};

}  // namespace gt
