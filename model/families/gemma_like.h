// Common to Gemma 2 and 3, besides Llama's keys and tensors (Gemma team 2024, arXiv 2408.00118; 2025, arXiv
// 2503.19786): norms before and after both branches with weights around 0, embeddings times sqrt(hidden), a GELU gate,
// and a window in all blocks but every n-th.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>

#include "model/families/llama_like.h"
#include "model/families/window_keys.h"

namespace gt {

// `standard`: where the key is missing; null: no cap.
inline void soft_cap_key(HfKeys& k, const char* key, double& cap, double standard) {
  if (!k.reading() && cap == 0) return k.none(key);
  k.number(key, cap, 1e-6, 1e6, standard);
  if (k.reading() && k.presence(key) != HfKeys::Presence::kValue)
    cap = k.presence(key) == HfKeys::Presence::kNull ? 0 : standard;
}

// Written as a whole number where it is one, which is its type there.
inline void attn_scalar_key(HfKeys& k, TransformerConfig& c) {
  constexpr const char* kKey = "query_pre_attn_scalar";
  if (k.reading()) return k.number(kKey, c.attn_scalar, 1e-3, 1 << 20, 256);
  double scalar = c.attn_scalar > 0 ? c.attn_scalar : static_cast<double>(c.head_width());
  if (scalar == std::floor(scalar)) return k.also(kKey, static_cast<int64_t>(scalar));
  k.number(kKey, scalar, 1e-3, 1 << 20, 256);
}

inline void gemma_like_keys(HfKeys& k, TransformerConfig& c) {
  k.word("hidden_activation", {"gelu_pytorch_tanh"});
  k.unused({"hidden_act", "sliding_window_pattern", "_sliding_window_pattern"});  // layer_types
  decoder_keys(k, c);
  k.integer("head_dim", c.head_dim, 1, 65536, 256);
  attention_bias_key(k, c);
  attn_scalar_key(k, c);
  // transformers needs a number even where no block has a window; layer_types decides.
  if (!k.reading() && c.window == 0)
    k.also("sliding_window", 4096);
  else
    sliding_window_key(k, c, 4096);
  layer_types_key(k, c, true);
  if (k.reading() && c.window == 0) c.global_every = 0;
  k.only("use_bidirectional_attention", false);
}

// Gemma's decisions, changed by `differ`, a callable void(TransformerConfig&).
template <class Differ>
constexpr TransformerConfig gemma_but(Differ differ) {
  return llama_but([&](TransformerConfig& c) {
    c.tied = c.scale_embed = c.norm_zero_centered = true;
    c.head_dim = 256, c.norm_eps = 1e-6, c.norm_place = NormPlace::kBoth, c.activation = Activation::kGelu;
    differ(c);
  });
}

// The first rule of a tensor counts.
inline constexpr auto kGemmaNames = [] {
  std::array<NameRule, std::size(kLlamaNames) + 1> all{};
  all[0] = {"layers.*.norm2.weight", "model.layers.*.pre_feedforward_layernorm.weight"};
  std::copy(std::begin(kLlamaNames), std::end(kLlamaNames), all.begin() + 1);
  return all;
}();

}  // namespace gt
