// Shrinks the model of a config for verification on any machine. Keeps everything that a layout could break: head
// count, weight tying, recomputation, partition with its empty stages, precision, optimizer, clipping. The learning
// rate is constant at its peak.
#pragma once
#include <string>
#include <vector>

#include "launch/config/config.h"

namespace gt {

// Layout constraints that the small model must satisfy.
struct ShrinkGoal {
  int64_t stages = 1;        // pp x vpp
  int64_t tp = 1;            // must divide ffn and seq
  int64_t seq = 32;          // tokens
  int64_t microbatches = 0;  // per step and replica; 0: see shrink()
  int steps = 3;             // training steps
};
ShrinkGoal goal_of(const Config&);                     // for the config's own layout
ShrinkGoal goal_of(const Config&, int64_t max_ranks);  // for every layout of up to max_ranks ranks

// Pure function of a checked config. No value grows except the number of microbatches, which is at least pp + 1 to fill
// the pipeline. `notes` gets a line per changed value, "model.layers 48 -> 4". The global batch is derived by the
// checker (check_layout).
Config shrink(const Config&, const ShrinkGoal&, std::vector<std::string>& notes);

}  // namespace gt
