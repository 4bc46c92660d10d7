// One microbatch as the model sees it. Produced by data/, consumed by model/; neither includes the other.
#pragma once
#include "kernels/core/tensor.h"

namespace gt {
struct MicroBatch {
  Tensor tokens;       // [batch, seq] i32; empty on ranks that need none (not the first stage)
  Tensor targets;      // [batch, seq] i32, -1 where no loss; empty on ranks that need none (not the last stage)
  Tensor segments;     // [batch, seq] i32 document ids; empty: one document
  Tensor loss_seed;    // [1] f32 on the device: d(objective)/d(sum of token losses); set by the executor
  int64_t batch = 0;   // sequences
  int64_t seq = 0;     // tokens a sequence
  int64_t first_sample = 0;  // global ordinal of the first sequence: counter base for dropout, equal under every layout
  int64_t stride = 1;  // ordinal of sequence i is first_sample + i * stride
};
}  // namespace gt
