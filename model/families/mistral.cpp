// Mistral (Jiang et al. 2023, arXiv 2310.06825): Llama with sliding-window attention in every block (no longer since
// v0.2).
#include "model/families/llama_like.h"
#include "model/families/window_keys.h"

namespace gt {
namespace {

void keys(HfKeys& k, TransformerConfig& c) {
  llama_like_keys(k, c);
  if (k.presence("num_key_value_heads") == HfKeys::Presence::kAbsent && k.reading()) c.kv_heads = 8;
  k.integer("head_dim", c.head_dim, 1, 65536, c.hidden / c.heads);
  sliding_window_key(k, c, 4096);
  layer_types_key(k, c);
}

}  // namespace

extern const Family kMistral{.name = "mistral",
                             .model_type = "mistral",
                             .architecture = "MistralForCausalLM",
                             .prefix = "model.",
                             .defaults = kLlamaDefaults,
                             .keys = keys,
                             .names = kLlamaNames};

}  // namespace gt
