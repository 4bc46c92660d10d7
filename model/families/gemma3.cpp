// Gemma 3, text alone (Gemma team 2025, arXiv 2503.19786): five blocks with a window to one without, which have rotary
// frequencies of their own, and norms of queries and keys instead of soft caps.
#include "model/families/gemma_like.h"

namespace gt {
namespace {

// Since transformers 5: positions of blocks without and with a window.
void newer_rope_keys(HfKeys& k, TransformerConfig& c) {
  k.object("full_attention", [&](HfKeys& p) { rope_parameter_keys(p, c); });
  k.object("sliding_attention", [&](HfKeys& p) {
    TransformerConfig local;
    local.rope_theta = c.rope_local_theta;
    rope_parameter_keys(p, local);
    if (local.rope.kind != RopeKind::kDefault) p.problem("rope_type: expected default");
    c.rope_local_theta = local.rope_theta;
  });
}

void keys(HfKeys& k, TransformerConfig& c) {
  if (k.reading() || c.global_every > 0) k.integer("sliding_window_pattern", c.global_every, 1, 1024, 6);
  gemma_like_keys(k, c);
  double local = c.rope_local_theta > 0 ? c.rope_local_theta : c.rope_theta;
  k.number("rope_local_base_freq", local, kLowestRopeTheta, kHighestRopeTheta, 10000);
  if (k.reading()) c.rope_local_theta = local;
  rope_keys(k, c, 1e6, newer_rope_keys);
  if (k.reading() && c.window == 0) c.rope_local_theta = 0;  // no block is left that has them
  k.none("attn_logit_softcapping");                          // transformers reads it and does not apply it
  soft_cap_key(k, "final_logit_softcapping", c.logit_softcap, 0);
}

}  // namespace

extern const Family kGemma3{.name = "gemma3",
                            .model_type = "gemma3_text",
                            .architecture = "Gemma3ForCausalLM",
                            .prefix = "model.",
                            .defaults = gemma_but([](TransformerConfig& c) {
                              c.rope_theta = 1e6, c.rope_local_theta = 1e4, c.qk_norm = QkNormKind::kHead;
                              c.window = 1024, c.global_every = 6;
                            }),
                            .keys = keys,
                            .names = kGemmaNames};

}  // namespace gt
