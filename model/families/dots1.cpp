// dots.llm1 (Huo et al. 2025, arXiv 2506.05767): Qwen3's attention, and the experts of DeepSeek-V3 (arXiv 2412.19437):
// sigmoid scores, chosen with a bias and from groups, beside shared experts; the first blocks are dense.
#include <numeric>

#include "model/families/llama_like.h"
#include "model/families/moe_keys.h"
#include "model/families/window_keys.h"

namespace gt {
namespace {

constexpr NameRule kShared[] = {
    {"layers.*.mlp.router.bias", "model.layers.*.mlp.gate.e_score_correction_bias"},
    {"layers.*.mlp.shared.up.weight",
     "model.layers.*.mlp.shared_experts.gate_proj.weight model.layers.*.mlp.shared_experts.up_proj.weight"},
    {"layers.*.mlp.shared.down.weight", "model.layers.*.mlp.shared_experts.down_proj.weight"},
};
constexpr auto kNames = with_rules(kRoutedNames, kShared);

void window_keys(HfKeys& k, TransformerConfig& c) {
  sliding_window_key(k, c, 4096);
  if (c.window > 0) k.integer("max_window_layers", c.global_first, 0, 1 << 20, 62);
  if (c.global_first >= c.layers) c.window = c.global_first = 0;  // no block has a window
  k.unused({"max_window_layers"});                                // without a window
  layer_types_key(k, c);
}

void keys(HfKeys& k, TransformerConfig& c) {
  llama_like_keys(k, c);
  derived_head_dim_key(k, c);
  attention_bias_key(k, c);
  window_keys(k, c);
  auto first = static_cast<int64_t>(c.moe.dense_blocks.size());
  k.integer("first_k_dense_replace", first, 0, 1024, 0);
  if (first >= c.layers) k.problem(cat("first_k_dense_replace: ", first, ", expected fewer than num_hidden_layers"));
  if (k.reading()) {
    c.moe.dense_blocks.resize(static_cast<size_t>(first));
    std::iota(c.moe.dense_blocks.begin(), c.moe.dense_blocks.end(), 0);
  }
  expert_width_key(k, c, 1408);
  k.integer("n_routed_experts", c.moe.experts, 1, 4096);
  k.integer("n_shared_experts", c.moe.shared, 1, 64);
  k.integer("num_experts_per_tok", c.moe.top_k, 1, 64);
  k.integer("n_group", c.moe.groups, 1, 4096, 1);
  k.integer("topk_group", c.moe.top_groups, 1, 4096, 1);
  k.boolean("norm_topk_prob", c.moe.normalize, false);
  k.number("routed_scaling_factor", c.moe.scale, 1e-6, 1e6, 1);
  k.only("output_router_logits", false);
  k.unused({"scoring_func", "topk_method", "moe_layer_freq", "aux_loss_alpha", "seq_aux"});
  if (k.reading()) c.moe.gate = GateKind::kSigmoid, c.moe.bias = true, c.moe.shared_gate = false;
}

}  // namespace

extern const Family kDots1{.name = "dots1",
                           .model_type = "dots1",
                           .architecture = "Dots1ForCausalLM",
                           .prefix = "model.",
                           .defaults = llama_but([](TransformerConfig& c) {
                             c.norm_eps = 1e-5, c.rope_theta = 1e7, c.qk_norm = QkNormKind::kHead;
                             c.moe.experts = 128, c.moe.top_k = 6, c.moe.gate = GateKind::kSigmoid;
                             c.moe.bias = true, c.moe.scale = 2.5, c.moe.shared = 2;
                           }),
                           .keys = keys,
                           .names = kNames};

}  // namespace gt
