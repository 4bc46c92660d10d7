// One microbatch as the model sees it. Produced by data/, consumed by model/; neither includes the other.
#pragma once
#include "kernels/core/tensor.h"

namespace gt {

// Keys and values of a block, [sequences, local kv heads, positions, head_dim] each.
struct KvLayer {
  Tensor keys, values;
};

struct MicroBatch {
  Tensor tokens;       // [batch, seq] i32; empty on ranks that need none (not the first stage)
  Tensor targets;      // [batch, seq] i32, -1 where no loss; empty on ranks that need none (not the last stage)
  Tensor segments;     // [batch, seq] i32 document ids; empty: one document
  Tensor loss_seed;    // [1] f32 on the device: d(objective)/d(sum of token losses); set by the executor
  int64_t batch = 0;   // sequences
  int64_t seq = 0;     // tokens a sequence
  int64_t loss_tokens = -1;  // targets that carry loss; -1: not counted, all of them
  int64_t first_sample = 0;  // global ordinal of the first sequence, the others follow: what dropout masks depend on
  const int64_t* first_sample_at = nullptr;  // given: where the device finds first_sample; set by the executor
  bool train = false;  // dropout acts; set by the engine's step
  // Generation: keys and values of the tokens enter the cache at these positions of these sequences, both i32 [batch,
  // seq]. seq > 1: beginnings of sequences, whose tokens see each other. seq 1: each token goes on from what the cache
  // holds of its sequence.
  const KvLayer* cache = nullptr;  // of the stage's first block, the others follow; nullptr: nothing is kept
  Tensor positions, sequences;
};
}  // namespace gt
