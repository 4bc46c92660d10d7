// Mixtral (Jiang et al. 2024, arXiv 2401.04088): Mistral with routed experts, whose weights are a softmax over the
// chosen ones.
#include "model/families/llama_like.h"
#include "model/families/moe_keys.h"
#include "model/families/window_keys.h"

namespace gt {
namespace {

constexpr auto kNames = with_experts("model.layers.*.block_sparse_moe.gate.weight",
                                     "model.layers.*.block_sparse_moe.experts.*.w1.weight "
                                     "model.layers.*.block_sparse_moe.experts.*.w3.weight",
                                     "model.layers.*.block_sparse_moe.experts.*.w2.weight");

void keys(HfKeys& k, TransformerConfig& c) {
  llama_like_keys(k, c);
  if (k.presence("num_key_value_heads") == HfKeys::Presence::kAbsent && k.reading()) c.kv_heads = 8;
  k.number("rms_norm_eps", c.norm_eps, 1e-12, 1, 1e-5);
  k.integer("head_dim", c.head_dim, 1, 65536, c.hidden / c.heads);
  sliding_window_key(k, c, 0);
  layer_types_key(k, c);
  k.integer("num_local_experts", c.moe.experts, 1, 4096, 8);
  double jitter = 0;
  k.number("router_jitter_noise", jitter, 0, 1, 0);
  if (jitter != 0) k.problem(cat("router_jitter_noise: ", jitter, ", which is not built; expected 0"));
  moe_keys(k, c, 2);
  if (k.reading()) c.moe.normalize = true;
}

}  // namespace

extern const Family kMixtral{
    .name = "mixtral",
    .model_type = "mixtral",
    .architecture = "MixtralForCausalLM",
    .prefix = "model.",
    .defaults = llama_but([](TransformerConfig& c) { c.rope_theta = 1e6, c.moe.experts = 8, c.moe.top_k = 2; }),
    .keys = keys,
    .names = kNames};

}  // namespace gt
