// Locates non-finite values of a step, for the report of an anomalous step.
#pragma once
#include <optional>
#include <string>

#include "launch/engine/measure/op_watch.h"
#include "launch/train/rank_context.h"

namespace gt {

// Collective. Selects, of the ranks' first ops with a non-finite result, the one that produced it from finite operands,
// in the lowest microbatch, at the earliest time. `bad`: this rank's op, from a rerun of the step with result `again`,
// whose global batch begins with `first_sample`.
// Returns "; the first op whose result is not finite: …", or the interpretation if there is none.
std::string name_first_bad_op(const RankContext&, const std::optional<BadOp>& bad, const StepResult& again,
                              int64_t first_sample);

// Collective. Returns the first non-finite values after the engine's last step, "" if there are none. Order: losses by
// microbatch, which all ranks have; then weights, which explain everything else; then gradients, in the order of the
// backward.
std::string name_bad_values(const RankContext&, const Engine&, int64_t first_sample);

}  // namespace gt
