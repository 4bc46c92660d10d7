// What can be said about a schedule without playing it: every action in its place, every message matched, nothing
// leaked. Knows no times; simulate() calls it first and then looks for deadlocks.
#pragma once
#include <string>

#include "parallel/pipeline/schedule.h"

namespace gt {

// Rank r's program around action k, for messages: "... 1F0 1F<1 >>1B0<< 1B>0 ...".
std::string excerpt(const Schedule&, int rank, size_t k);

// True when no rank computes a gradient: an evaluation schedule.
bool is_forward_only(const Schedule&);

// Throws gt::Error (kUsage) naming rank and token when a rank's actions are out of order, repeated, missing or on the
// wrong rank; when microbatches of a stage are not visited in ascending order in F, B, I or W (the order of gradient
// accumulation); when messages of one (source, destination, direction) do not match one to one, in order.
void check_schedule(const Schedule&);

}  // namespace gt
