// Rank-ordered reduction in host memory, shared by the backends that compute their own sums. Knows no ranks and no
// transport.
#pragma once
#include "parallel/comm/process_group.h"

namespace gt {

// out[i] = ((p0[i] op p1[i]) op p2[i]) op … for i in [0, n). bf16 and f16 are widened to f32, reduced, and rounded once
// (nearest even). max and min propagate the first NaN. `out` may be one of the parts; other overlaps are not allowed.
void reduce_in_order(std::byte* out, const std::byte* const* parts, int count, int64_t n, DType, ReduceOp);

}  // namespace gt
