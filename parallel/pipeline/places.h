// Where one rank keeps the microbatches it has in flight: decided once from its program, so that a step allocates
// nothing and every step uses the same addresses. Knows no tensors, only numbers of slots and of boundary buffers.
#pragma once
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace gt {

// Of one (local chunk, microbatch); -1: needs none.
struct Place {
  int slot = -1;   // arena and tape: from F to the end of B or W; without backward until the slot's next turn
  int input = -1;  // buffer of the received activation: from F< to the end of B or W, without backward to the end of F
  int upstream = -1;  // buffer of the received gradient: from B< to the end of B or W
};

struct Places {
  int slots = 0, buffers = 0;
  std::vector<Place> of;  // [chunk * microbatches + microbatch]
};

// The schedule has been checked. With backward, slots equals simulate()'s peak_in_flight of the rank; without, it is at
// least 2, taken in turn, so that one microbatch computes while the output of the one before is still being sent.
Places assign_places(const Schedule&, int rank);

}  // namespace gt
