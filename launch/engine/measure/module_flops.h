// FLOPs of each module in a step, derived from the model's sizes, next to the measured seconds of its ops. Printed by
// log.flops_step as a table like DeepSpeed's flops_profiler.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/model_spec.h"

namespace gt {

// Leaf of the module tree, "layers.3.attn.qkv".
struct ModuleCost {
  std::string name;
  int64_t parameters = 0;            // logical; a tied table counts once, with the embedding
  double flops = 0;                  // of all forwards of the step on all ranks; a backward has twice as many
  double forward = 0, backward = 0;  // seconds of its ops in the step, mean over the ranks that ran any
};

// Returns the leaves in execution order. tokens: per step; length: of a sequence; keep: ModelStage::keep_blocks, empty
// for all blocks. Leaves include modules without parameters (attention core, GELU).
std::vector<ModuleCost> module_costs(const ModelSpec&, int64_t tokens, int64_t length,
                                     std::span<const double> keep = {});

struct FlopsTable {
  int64_t step = 0;
  int depth = -1;               // levels below the whole model; -1: all
  int top = 1;                  // modules listed in the summary of each level
  bool detailed = true;         // print a line for every module
  double recompute_factor = 0;  // fraction of the forward that is recomputed in the backward
  int64_t replicas = 1;         // ranks that share a module's work: tp x dp
  double step_seconds = 0;
  std::string batch;  // "8 sequences of 1024 tokens"
};

// Returns lines of text: the step, a summary of each level, and every module.
std::string flops_table(std::span<const ModuleCost> leaves, const FlopsTable&);

}  // namespace gt
