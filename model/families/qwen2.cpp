// Qwen2 and Qwen2.5 (Yang et al. 2024): Llama with QKV biases and an optional sliding window in the blocks after the
// first max_window_layers.
#include "autograd/ops.h"
#include "model/families/llama_like.h"
#include "model/families/window_keys.h"

namespace gt {
namespace {

void keys(HfKeys& k, TransformerConfig& c) {
  llama_like_keys(k, c);
  derived_head_dim_key(k, c);
  bool windows = c.window > 0;
  k.boolean("use_sliding_window", windows, false);
  if (windows) {
    sliding_window_key(k, c, 4096);
    k.integer("max_window_layers", c.global_first, 0, 1 << 20, 28);
    if (c.global_first >= c.layers) c.window = c.global_first = 0;  // no block has a window
  } else if (!k.reading()) {
    k.none("sliding_window");
  }
  k.unused({"sliding_window", "max_window_layers"});  // without use_sliding_window
  layer_types_key(k, c);
}

}  // namespace

extern const Family kQwen2{
    .name = "qwen2",
    .model_type = "qwen2",
    .architecture = "Qwen2ForCausalLM",
    .prefix = "model.",
    .defaults = llama_but([](TransformerConfig& c) { c.norm_eps = 1e-6, c.rope_theta = 1e6, c.qkv_bias = true; }),
    .keys = keys,
    .names = kLlamaNames};

}  // namespace gt
