// The model of a config made small enough to verify anywhere, with everything kept that a layout could break: heads,
// tied or not, recomputation, partition with its empty stages, precision, optimizer, clipping. The learning rate stays
// at its peak.
#pragma once
#include <string>
#include <vector>

#include "launch/config/config.h"

namespace gt {

// What the small model must still be able to bear.
struct ShrinkGoal {
  int64_t stages = 1;        // pp x vpp
  int64_t tp = 1;            // must divide ffn and seq
  int64_t seq = 32;          // tokens
  int64_t microbatches = 0;  // a step and replica; 0: by the rule below
  int steps = 3;             // of training
};
ShrinkGoal goal_of(const Config&);                     // its own layout
ShrinkGoal goal_of(const Config&, int64_t max_ranks);  // every layout of up to so many ranks

// A pure function of a checked config. Nothing grows, except the number of microbatches: to pp + 1, so that a pipeline
// has something to do. `notes` gets a line for each value that changed, "model.layers 48 -> 4". The
// global batch is left to the checker (check_layout).
Config shrink(const Config&, const ShrinkGoal&, std::vector<std::string>& notes);

}  // namespace gt
