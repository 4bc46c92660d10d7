// Gemma 2 (Gemma team 2024, arXiv 2408.00118): every other block has a window; scores and logits are capped.
#include "model/families/gemma_like.h"

namespace gt {
namespace {

void keys(HfKeys& k, TransformerConfig& c) {
  gemma_like_keys(k, c);
  rope_keys(k, c);
  soft_cap_key(k, "attn_logit_softcapping", c.attn_softcap, 50);
  soft_cap_key(k, "final_logit_softcapping", c.logit_softcap, 30);
}

}  // namespace

extern const Family kGemma2{.name = "gemma2",
                            .model_type = "gemma2",
                            .architecture = "Gemma2ForCausalLM",
                            .prefix = "model.",
                            .defaults = gemma_but([](TransformerConfig& c) {
                              c.window = 4096, c.global_every = 2, c.attn_softcap = 50, c.logit_softcap = 30;
                            }),
                            .keys = keys,
                            .names = kGemmaNames};

}  // namespace gt
