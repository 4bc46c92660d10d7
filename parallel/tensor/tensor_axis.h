// Layout of activations between tensor-parallel layers: replicated over tp or, with sequence parallelism (Korthikanti
// et al. 2022), split by rows. Row-wise ops there (norms, residual adds, dropout) then process 1/t of the rows, and
// their parameters get partial gradients (ShardSpec::partial).
#pragma once
#include "kernels/core/batch.h"
#include "parallel/comm/process_group.h"

namespace gt {

// Rows [first, first + rows) of a microbatch's [batch * seq] tokens; MicroBatch::rows(first) has their positions.
struct RowSlice {
  int64_t first = 0, rows = 0;
};

struct TensorAxis {
  ProcessGroup& group;
  bool sequence_parallel = false;

  bool splits_rows() const { return sequence_parallel && group.size() > 1; }

  // Returns the rows that this rank holds between tensor-parallel layers: equal contiguous slices in rank order. Throws
  // if the group size does not divide the rows.
  RowSlice rows(const MicroBatch& mb) const {
    const int64_t n = mb.batch * mb.seq;
    if (!splits_rows()) return {0, n};
    GT_CHECK(n % group.size() == 0, mb.batch, " sequences of ", mb.seq, " tokens cannot be cut into ", group.size(),
             " equal runs of rows");
    const int64_t part = n / group.size();
    return {part * group.rank(), part};
  }
};

}  // namespace gt
