// Qwen2 with routed experts (Yang et al. 2024, arXiv 2407.10671) beside a shared one, which each token weights by a
// sigmoid. The weights of the chosen experts are a softmax over all of them, not normalized in the released models.
#include "model/families/llama_like.h"
#include "model/families/moe_keys.h"
#include "model/families/window_keys.h"

namespace gt {
namespace {

constexpr NameRule kShared[] = {
    {"layers.*.mlp.shared.gate.weight", "model.layers.*.mlp.shared_expert_gate.weight"},
    {"layers.*.mlp.shared.up.weight",
     "model.layers.*.mlp.shared_expert.gate_proj.weight model.layers.*.mlp.shared_expert.up_proj.weight"},
    {"layers.*.mlp.shared.down.weight", "model.layers.*.mlp.shared_expert.down_proj.weight"},
};
constexpr auto kNames = with_rules(kRoutedNames, kShared);

void keys(HfKeys& k, TransformerConfig& c) {
  llama_like_keys(k, c);
  derived_head_dim_key(k, c);
  k.only("use_sliding_window", false);
  k.unused({"sliding_window", "max_window_layers"});
  full_layer_types_key(k);
  if (k.reading()) k.only("qkv_bias", true), c.qkv_bias = true, c.out_bias = false;
  sparse_keys(k, c);
  expert_width_key(k, c, 1408);
  int64_t shared = c.moe.shared * c.ffn;
  k.integer("shared_expert_intermediate_size", shared, 1, 1 << 23, 5632);
  if (k.reading()) c.moe.shared = shared / c.ffn, c.moe.shared_gate = true;
  if (shared % c.ffn != 0)
    k.problem(
        cat("shared_expert_intermediate_size: ", shared, ", expected a multiple of moe_intermediate_size, ", c.ffn));
  expert_count_key(k, c, 60);
  moe_keys(k, c, 4);
  k.boolean("norm_topk_prob", c.moe.normalize, false);
}

}  // namespace

extern const Family kQwen2Moe{.name = "qwen2_moe",
                              .model_type = "qwen2_moe",
                              .architecture = "Qwen2MoeForCausalLM",
                              .prefix = "model.",
                              .defaults = llama_but([](TransformerConfig& c) {
                                c.norm_eps = 1e-6, c.rope_theta = 1e6, c.qkv_bias = true;
                                c.moe.experts = 60, c.moe.top_k = 4, c.moe.normalize = false;
                                c.moe.shared = 4, c.moe.shared_gate = true;
                              }),
                              .keys = keys,
                              .names = kNames};

}  // namespace gt
