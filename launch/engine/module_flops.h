// What each module of the model computes in a step, counted from the model's sizes, beside the seconds that its ops
// took: the table of log.flops_step, which is what DeepSpeed's flops_profiler prints.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/model_spec.h"

namespace gt {

// A leaf of the tree of modules, "layers.3.attn.qkv".
struct ModuleCost {
  std::string name;
  int64_t parameters = 0;            // logical; a tied table once, with the embedding
  double flops = 0;                  // of all forwards of the step, of all ranks; a backward has twice as many
  double forward = 0, backward = 0;  // seconds of its ops in the step, a mean over the ranks that ran some
};

// The leaves in execution order. tokens: of the step; length: of a sequence; keep: ModelStage::keep_blocks, empty for
// all blocks. What has no parameters of its own (attention between its projections, GELU) is a leaf too.
std::vector<ModuleCost> module_costs(const ModelSpec&, int64_t tokens, int64_t length,
                                     std::span<const double> keep = {});

struct FlopsTable {
  int64_t step = 0;
  int depth = -1;               // levels below the whole model; -1: all
  int top = 1;                  // modules that the summary of a level names
  bool detailed = true;         // with a line for every module
  double recompute_factor = 0;  // share of the forward that is counted once more in the backward
  int64_t replicas = 1;         // ranks that share a module's work: tp x dp
  double step_seconds = 0;
  std::string batch;  // "8 sequences of 1024 tokens"
};

// Lines of text: the step, a summary of each level, and every module.
std::string flops_table(std::span<const ModuleCost> leaves, const FlopsTable&);

}  // namespace gt
