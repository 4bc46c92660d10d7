// Workload of a step for closed forms: model sizes, layout, batch. Derived from a config or a row of published
// measurements.
#pragma once
#include <compare>
#include <cstdint>
#include <vector>

#include "launch/config/values/layout_options.h"

namespace gt {

// What determines the kernels of a block on one rank.
struct BlockShape {
  int64_t hidden = 0, ffn = 0, heads = 0, kv_heads = 0, head_dim = 0, seq = 0, micro_batch = 0, tp = 0, cp = 0,
          gated = 0, sequence_parallel = 0, fused_attention = 0, recompute = 0, frozen = 0;
  auto operator<=>(const BlockShape&) const = default;
  template <class V>
  void fields(V&& v) {
    v("hidden", hidden), v("ffn", ffn), v("heads", heads), v("kv_heads", kv_heads), v("head_dim", head_dim);
    v("seq", seq), v("micro_batch", micro_batch), v("tp", tp), v("cp", cp), v("gated", gated);
    v("sequence_parallel", sequence_parallel), v("fused_attention", fused_attention), v("recompute", recompute);
    v("frozen", frozen);
  }
};

struct Workload : LayoutOptions {
  // Model. Channels: heads * head_dim of queries, kv_heads * head_dim of keys and of values.
  int64_t layers = 1, hidden = 1, heads = 1, kv_heads = 1, head_dim = 1, ffn = 1, vocab = 1, seq = 1;
  bool gated = false, untied = false;
  bool bidirectional = false;  // each query sees all keys
  // Routed feed-forward layers: experts, those of each token, and ranks that they are split over. 0: one dense MLP.
  int64_t experts = 0, top_k = 0, shared = 0, ep = 1;  // shared: computed for every token, of the same width
  // Layout.
  int64_t tp = 1, pp = 1, cp = 1, dp = 1;
  int zero = 0;  // ZeRO stage
  bool sequence_parallel = false;
  bool scatter_gather = false;  // pipeline messages are split over the TP ranks
  bool overlap = false;         // gradients are reduced during the backward pass
  bool embedding_slot = false;  // the embedding counts as one layer of the pipeline partition
  bool fused_attention = true;  // no scores in memory
  // Batch, in sequences.
  int64_t global_batch = 1, micro_batch = 1;
  double trained = 1;  // fraction of the parameters that have gradients
  // Bytes per parameter: of communicated gradients; replicated on every rank; sharded over dp.
  double gradient_bytes = 2, kept_bytes = 18, sharded_bytes = 0;
  // Muon: matrices of a block that it orthogonalizes (none: another optimizer), Newton-Schulz iterations, and bytes per
  // element of their GEMMs.
  struct Matrix {
    double rows = 1, cols = 1;
    double elements() const { return rows * cols; }
  };
  std::vector<Matrix> orthogonalized;
  int64_t newton_schulz = 5;
  double newton_schulz_bytes = 2;

  BlockShape block_shape() const {
    return {hidden,
            ffn,
            heads,
            kv_heads,
            head_dim,
            seq,
            micro_batch,
            tp,
            cp,
            gated,
            sequence_parallel,
            fused_attention,
            static_cast<int64_t>(recompute),
            trained < 0.5};
  }
  int64_t devices() const { return tp * pp * cp * dp; }
  int64_t microbatches() const { return global_batch / (dp * micro_batch); }
  double q_width() const { return static_cast<double>(heads * head_dim); }
  double kv_width() const { return static_cast<double>(kv_heads * head_dim); }
  // MLPs of a block that a rank holds, and those that a token is multiplied by.
  double held_mlps() const {
    return experts > 0 ? static_cast<double>(experts) / static_cast<double>(ep) + static_cast<double>(shared) : 1;
  }
  double active_mlps() const { return experts > 0 ? static_cast<double>(top_k + shared) : 1; }
  // Number of weights in the linear layers of a block, over all TP ranks; of experts, those of one EP rank.
  double block_weights() const {
    const auto h = static_cast<double>(hidden);
    return h * (q_width() + 2 * kv_width()) + h * q_width() + mlp_weights() + h * static_cast<double>(experts);
  }
  double mlp_weights() const { return held_mlps() * weights_of_mlp(); }
  double weights_of_mlp() const { return static_cast<double>(hidden) * static_cast<double>(ffn) * (2 + gated); }
};

}  // namespace gt
