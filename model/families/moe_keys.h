// Hugging Face keys and tensor names of routed experts.
#pragma once
#include <algorithm>
#include <array>
#include <iterator>

#include "model/families/llama_like.h"

namespace gt {

// Number of experts where transformers 5 writes another key than released folders have.
inline void expert_count_key(HfKeys& k, TransformerConfig& c, int64_t standard) {
  constexpr const char *kKey = "num_experts", *kNewer = "num_local_experts";
  int64_t newer = standard;
  const bool other = k.reading() && k.presence(kNewer) == HfKeys::Presence::kValue;
  if (other) k.integer(kNewer, newer, 1, 4096);
  k.integer(kKey, c.moe.experts, 1, 4096, other ? newer : standard);
  if (other && newer != c.moe.experts) k.problem(cat(kNewer, ": ", newer, ", but ", kKey, " is ", c.moe.experts));
}

// Llama's names and those of routed blocks. A second star is the number of the expert.
constexpr auto with_experts(std::string_view router, std::string_view up, std::string_view down) {
  std::array<NameRule, std::size(kLlamaNames) + 3> out{};
  std::copy(std::begin(kLlamaNames), std::end(kLlamaNames), out.begin());
  out[out.size() - 3] = {"layers.*.mlp.router.weight", router};
  out[out.size() - 2] = {"layers.*.mlp.experts.up.weight", up};
  out[out.size() - 1] = {"layers.*.mlp.experts.down.weight", down};
  return out;
}
inline constexpr auto kRoutedNames =
    with_experts("model.layers.*.mlp.gate.weight",
                 "model.layers.*.mlp.experts.*.gate_proj.weight model.layers.*.mlp.experts.*.up_proj.weight",
                 "model.layers.*.mlp.experts.*.down_proj.weight");

// Further rules behind those of `names`.
template <size_t N, size_t M>
constexpr std::array<NameRule, N + M> with_rules(const std::array<NameRule, N>& names, const NameRule (&more)[M]) {
  std::array<NameRule, N + M> out{};
  std::copy(names.begin(), names.end(), out.begin());
  std::copy(more, more + M, out.begin() + N);
  return out;
}

// `moe_intermediate_size`. `intermediate_size`, which was taken before as ffn, is that of dense blocks, if there are
// any.
inline void expert_width_key(HfKeys& k, TransformerConfig& c, int64_t standard) {
  if (k.reading()) c.moe.dense_ffn = c.moe.dense_blocks.empty() ? 0 : c.ffn;
  k.integer("moe_intermediate_size", c.ffn, 1, 1 << 23, standard);
  if (!k.reading()) k.also("intermediate_size", c.dense_ffn());
}

// Dense blocks: every one but each decoder_sparse_step-th, and those listed.
inline void sparse_keys(HfKeys& k, TransformerConfig& c) {
  std::vector<int64_t>& dense = c.moe.dense_blocks;
  int64_t step = 1;
  k.integer("decoder_sparse_step", step, 1, 1024, 1);
  k.integers("mlp_only_layers", dense);
  for (int64_t i = 0; k.reading() && i < c.layers; ++i)
    if ((i + 1) % step != 0) dense.push_back(i);
  std::sort(dense.begin(), dense.end());
  dense.erase(std::unique(dense.begin(), dense.end()), dense.end());
  if (!dense.empty() && (dense.front() < 0 || dense.back() >= c.layers))
    k.problem(cat("mlp_only_layers: expected numbers 0 to ", c.layers - 1));
  if (static_cast<int64_t>(dense.size()) >= c.layers)
    k.problem("decoder_sparse_step, mlp_only_layers: no layer has experts");
}

// What these families call alike. router_aux_loss_coef has no effect without output_router_logits.
inline void moe_keys(HfKeys& k, TransformerConfig& c, int64_t standard_top_k) {
  k.integer("num_experts_per_tok", c.moe.top_k, 1, 64, standard_top_k);
  k.only("output_router_logits", false);
  k.unused({"router_aux_loss_coef"});
  if (!k.reading()) return;
  c.moe.gate = GateKind::kSoftmax, c.moe.scale = 1, c.moe.groups = c.moe.top_groups = 1, c.moe.bias = false;
}

}  // namespace gt
