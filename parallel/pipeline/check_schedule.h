// Static checks of a schedule: actions in order, messages matched, nothing leaked. Independent of times; simulate()
// runs them before it searches for deadlocks.
#pragma once
#include <string>

#include "parallel/pipeline/pipeline_schedule.h"

namespace gt {

// Returns rank r's program around action k, for error messages: "... 1F0 1F<1 >>1B0<< 1B>0 ...".
std::string excerpt(const PipelineSchedule&, int rank, size_t k);

// True if no rank computes a gradient: an evaluation schedule.
bool is_forward_only(const PipelineSchedule&);

// Throws gt::Error (kUsage) naming rank and token if a rank's actions are out of order, repeated, missing or on the
// wrong rank. Also if microbatches of a stage do not ascend in F, B, I or W (the order of gradient accumulation). Also
// if messages of one (source, destination, direction) do not match one to one, in order.
void check_schedule(const PipelineSchedule&);

}  // namespace gt
