// Names what is not finite in a step, for the report of a bad step.
#pragma once
#include <optional>
#include <string>

#include "launch/engine/op_watch.h"
#include "launch/train/rank_context.h"

namespace gt {

// Collective. Of several ranks' first ops with a result that is not finite, the one whose operands were finite, in the
// least microbatch, at the earliest time. `bad`: this rank's, of a run of the step with the result `again`, whose
// global batch begins with `first_sample`. "; the first op whose result is not finite: …", or what it means that there
// is none.
std::string name_first_bad_op(const RankContext&, const std::optional<BadOp>& bad, const StepResult& again,
                              int64_t first_sample);

// Collective. The first values that are not finite after the engine's last step: losses by microbatch, which all ranks
// have; then weights, which explain everything else; else gradients, the first in the order of the backward. "": none.
std::string name_bad_values(const RankContext&, const Engine&, int64_t first_sample);

}  // namespace gt
