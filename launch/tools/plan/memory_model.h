// Closed-form memory of a pipeline rank: prunes searches and predicts published runs; the memory plan of a config
// (engine_plan.cpp) is exact. Source: Korthikanti et al. 2022 (arXiv 2205.05198), generalized to grouped queries and
// gated MLPs.
#pragma once
#include "launch/tools/plan/workload.h"

namespace gt {

struct MemoryTerms {
  double state = 0;        // weights, gradients, optimizer state
  double activations = 0;  // kept for all microbatches in flight
  double working_set = 0;  // of the block being recomputed, and logits
  double total() const { return state + activations + working_set; }
};

// Bytes of activations that one block keeps per microbatch, in 16 bits.
double block_activations(const Workload&, Recompute);

// Bytes of a rank of pipeline stage `stage` (0 is the first) under 1F1B or its interleaved form.
MemoryTerms stage_memory(const Workload&, int64_t stage);

// Memory of the stage that needs most.
MemoryTerms largest_stage_memory(const Workload&);

}  // namespace gt
