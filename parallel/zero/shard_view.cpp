#include "parallel/zero/shard_view.h"

namespace gt {

int64_t logical_offset(const ShardView& v, int64_t local) {
  const int64_t rows = v.local.rank > 1 ? v.local[0] : v.local.numel(), cols = v.local.numel() / rows;
  const int64_t full_rows = v.full[0], full_cols = v.full.numel() / full_rows;
  int64_t r = local / cols, c = local % cols;
  if (v.shard.kind == ShardSpec::Kind::kSplit) {
    if (v.shard.dim == 0)
      r = logical_index(v.shard, v.pad_rows ? v.pad_rows : full_rows, r, v.tp_rank, v.tp_size);
    else c = logical_index(v.shard, full_cols, c, v.tp_rank, v.tp_size);
  }
  return r < full_rows ? r * full_cols + c : -1;
}

}  // namespace gt
