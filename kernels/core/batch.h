// One microbatch as the model sees it. Produced by data/, consumed by model/; neither includes the other.
#pragma once
#include "kernels/core/positions.h"
#include "kernels/core/tensor.h"

namespace gt {

// KV cache of a layer: keys, values [sequences, local kv heads, positions, head_dim] each.
struct KvLayer {
  Tensor keys, values;
};

struct MicroBatch {
  Tensor tokens;   // [batch, seq] i32; empty on ranks that need none (not the first stage)
  Tensor targets;  // [batch, seq] i32, -1: no loss; empty on ranks that need none (not the last stage)
  // [batch, seq] i32: position of each token in its document, 0 at the document's first token, else one more than that
  // of the token before; needed on every stage. Learned and rotary positions read it; attention stays in the document.
  // Empty: each sequence is one document. Generation: see below.
  Tensor positions;
  // Sentence pairs (masked language models); each empty on ranks that need none, and of other models.
  Tensor types;    // [batch, seq] i32 token types: 0 of the first sentence, 1 of the second; first stage
  Tensor lengths;  // [batch] i32 tokens before the padding, 1 to seq; every stage
  Tensor pairs;    // [batch] i32 1: the second sentence is another document's, 0: it follows, -1: no loss; last stage
  // By index of ModelSpec::loss_sums, on the device; 0 is that of tokens.
  Tensor dloss;              // [losses] f32: d(objective)/d(sum); set by the engine
  Tensor sums;               // [losses] f64: receives the sums that this stage computes; set by the executor
  Tensor hits;               // [losses] f64: likewise the number of targets with the largest logit; empty: not counted
  int64_t batch = 0;         // sequences
  int64_t seq = 0;           // tokens per sequence
  int64_t loss_tokens = -1;  // targets that carry loss; -1: not counted, all of them
  int64_t first_sample = 0;  // global ordinal of the first sequence, the others follow; keys dropout masks
  const int64_t* first_sample_at = nullptr;  // if set: device address of first_sample; set by the executor
  bool train = false;                        // enables dropout and z-loss; set by the engine's step
  // Generation: keys and values of the tokens are stored in the cache at `positions` of these sequences, both i32
  // [batch, seq]. seq > 1: prefill, tokens attend to each other. seq 1: decode, each token attends to the cache of its
  // sequence.
  const KvLayer* cache = nullptr;  // cache of the stage's first layer, the others follow; nullptr: no cache
  Tensor sequences;

  // Positions of a tensor whose row 0 is row `first_row` of [batch * seq].
  Positions rows(int64_t first_row = 0) const { return {.seq = seq, .first_row = first_row}; }
  // `positions` where documents are packed. Empty in generation, where a prompt is one document.
  Tensor documents() const { return cache == nullptr ? positions : Tensor{}; }
};
}  // namespace gt
