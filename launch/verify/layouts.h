// The layouts of a config: the ones it is held against, and all those that are legal. What is legal the checker of the
// config says, and what values an axis has the option registry, so a feature joins as soon as nothing refuses it.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "launch/config/config.h"

namespace gt {

// The same batch on one rank with nothing split, recomputed or sharded: what every layout must be close to.
Config one_rank(const Config&);

// The same cuts of tensors and batch (tp, sequence parallelism, dp), but one pipeline stage, nothing recomputed and no
// ZeRO: what this layout must equal bit by bit.
Config flat(const Config&);

// Keys that make a layout, and the values that are worth trying for up to `max_ranks` ranks, as a user would write
// them.
struct LayoutAxis {
  std::string key;
  std::vector<std::string> values;
};
std::vector<LayoutAxis> layout_axes(const Config&, int64_t max_ranks);

// Sets keys to values and has the result checked: the checked config with everything derived (the global batch from
// micro_batch, grad_accum and dp), or the problems.
struct CheckedLayout {
  Config config;
  std::vector<Problem> problems;
};
CheckedLayout check_layout(const Config& base, const std::vector<std::pair<std::string, std::string>>& settings);

// Every legal combination of the axes with at most `max_ranks` ranks, each different after derivation; sorted so that
// layouts with the same reference follow each other. precisions: at every level of mixed precision and in both half
// types; else as `base` has it.
std::vector<Config> legal_layouts(const Config& base, int64_t max_ranks, bool precisions = true);

// "tp 2 pp 2 dp 2 interleaved vpp 2 m 5 zero 1 recompute full O2 bf16": what is not at its default.
std::string layout_text(const Config&);

}  // namespace gt
