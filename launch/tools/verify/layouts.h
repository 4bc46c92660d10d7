// Layouts derived from a config: its references, and all legal layouts. Legality is decided by the config checker and
// axis values come from the option registry, so a new feature is included once nothing rejects it.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "launch/config/config.h"

namespace gt {

// Returns the same batch on one rank without sharding or recomputation: the reference within tolerance.
Config one_rank(const Config&);

// Returns the same tensor and batch sharding (tp, sequence parallelism, dp) with one pipeline stage, no recomputation
// and no ZeRO: the bitwise reference.
Config flat(const Config&);

// Keys that define a layout, and the values worth testing with up to `max_ranks` ranks, in user syntax.
struct LayoutAxis {
  std::string key;
  std::vector<std::string> values;
};
std::vector<LayoutAxis> layout_axes(const Config&, int64_t max_ranks);

// Sets the keys and checks the result. Returns the checked config with derived values (the global batch follows from
// micro_batch, grad_accum and dp), or the problems.
struct CheckedLayout {
  Config config;
  std::vector<Problem> problems;
};
CheckedLayout check_layout(const Config& base, const std::vector<std::pair<std::string, std::string>>& settings);

// Returns every legal combination of the axes with at most `max_ranks` ranks, distinct after derivation. Sorted so that
// layouts with the same reference are adjacent. precisions: at every amp level and in both 16-bit types, otherwise at
// that of `base`.
std::vector<Config> legal_layouts(const Config& base, int64_t max_ranks, bool precisions = true);

// Returns the settings that are not at their default: "tp 2 pp 2 dp 2 interleaved vpp 2 m 5 zero 1 recompute full O2
// bf16".
std::string layout_text(const Config&);

}  // namespace gt
