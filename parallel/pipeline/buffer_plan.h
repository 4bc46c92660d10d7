// Static assignment of buffers to the microbatches in flight on one rank, derived from its program. A step allocates
// nothing, and every step uses the same addresses. Handles no tensors, only numbers of slots and boundary buffers.
#pragma once
#include <vector>

#include "parallel/pipeline/pipeline_schedule.h"

namespace gt {

// Buffers of one (local chunk, microbatch); -1: none needed.
struct BufferAssignment {
  int slot = -1;   // arena and tape: from F to the end of B or W; without backward until the slot is reused
  int input = -1;  // receive buffer of the activation: from F< to the end of B or W, without backward to the end of F
  int upstream = -1;  // receive buffer of the gradient: from B< to the end of B or W
};

struct BufferPlan {
  int slots = 0, buffers = 0;
  std::vector<BufferAssignment> of;  // [chunk * microbatches + microbatch]
};

// Requires: check_schedule() accepts the schedule. With backward, slots equals simulate()'s peak_in_flight of the rank.
// Without, it is at least 2, used in turn, so that one microbatch computes while the output of the previous one is
// sent.
BufferPlan plan_buffers(const PipelineSchedule&, int rank);

}  // namespace gt
