// GPT-2 (Radford et al. 2019): pre-norm LayerNorm, learned positions, biases everywhere, tanh GELU, tied head.
#include "model/families/family.h"

namespace gt {
namespace {

void keys(HfKeys& k, TransformerConfig& c) {
  k.word("activation_function", {"gelu_new", "gelu_pytorch_tanh"}, " (GELU by tanh)");
  k.number("layer_norm_epsilon", c.norm_eps, 1e-12, 1, 1e-5);
  k.only("scale_attn_weights", true);
  k.only("scale_attn_by_inverse_layer_idx", false);
  k.only("add_cross_attention", false);
  k.integer("n_layer", c.layers, 1, 1024);
  k.integer("n_embd", c.hidden, 1, 1 << 20);
  k.integer("n_head", c.heads, 1, 65536);
  k.integer("n_inner", c.ffn, 1, 1 << 23, 4 * c.hidden);
  k.integer("vocab_size", c.vocab, 2, 1 << 22);
  k.integer("n_positions", c.seq, 1, 1 << 20);
  k.also("n_ctx", c.seq);
  k.boolean("tie_word_embeddings", c.tied, true);
  k.number("initializer_range", c.init_std, 1e-9, 10, 0.02);
  k.number("attn_pdrop", c.attn_dropout, 0, 0.999, 0.1);
  k.number("resid_pdrop", c.dropout, 0, 0.999, 0.1);
  double embed = c.dropout;
  k.number("embd_pdrop", embed, 0, 0.999, 0.1);
  if (embed != c.dropout)
    k.warning(cat("embd_pdrop ", embed, " is not kept: model.dropout is resid_pdrop, ", c.dropout));
  if (k.reading() && c.hidden % c.heads != 0) k.problem(cat("n_head: ", c.heads, " does not divide n_embd ", c.hidden));
}

constexpr NameRule kNames[] = {
    {"embed.weight", "transformer.wte.weight"},
    {"pos_embed.weight", "transformer.wpe.weight"},
    {"layers.*.norm1.weight", "transformer.h.*.ln_1.weight"},
    {"layers.*.norm1.bias", "transformer.h.*.ln_1.bias"},
    {"layers.*.attn.qkv.weight", "transformer.h.*.attn.c_attn.weight", true},
    {"layers.*.attn.qkv.bias", "transformer.h.*.attn.c_attn.bias"},
    {"layers.*.attn.out.weight", "transformer.h.*.attn.c_proj.weight", true},
    {"layers.*.attn.out.bias", "transformer.h.*.attn.c_proj.bias"},
    {"layers.*.norm2.weight", "transformer.h.*.ln_2.weight"},
    {"layers.*.norm2.bias", "transformer.h.*.ln_2.bias"},
    {"layers.*.mlp.up.weight", "transformer.h.*.mlp.c_fc.weight", true},
    {"layers.*.mlp.up.bias", "transformer.h.*.mlp.c_fc.bias"},
    {"layers.*.mlp.down.weight", "transformer.h.*.mlp.c_proj.weight", true},
    {"layers.*.mlp.down.bias", "transformer.h.*.mlp.c_proj.bias"},
    {"final_norm.weight", "transformer.ln_f.weight"},
    {"final_norm.bias", "transformer.ln_f.bias"},
    {"head.weight", "lm_head.weight"},
};

}  // namespace

extern const Family kGpt2{.name = "gpt2",
                          .model_type = "gpt2",
                          .architecture = "GPT2LMHeadModel",
                          .prefix = "transformer.",
                          .defaults = {},
                          .keys = keys,
                          .names = kNames};

}  // namespace gt
