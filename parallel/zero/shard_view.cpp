#include "parallel/zero/shard_view.h"

#include <algorithm>
#include <tuple>

namespace gt {

int64_t logical_offset(const ShardView& v, int64_t local) {
  const int64_t rows = v.local.rank > 1 ? v.local[0] : v.local.numel(), cols = v.local.numel() / rows;
  const int64_t full_rows = v.full[0], full_cols = v.full.numel() / full_rows;
  int64_t r = local / cols, c = local % cols;
  if (v.shard.kind == ShardSpec::Kind::kSplit) {
    if (v.shard.dim == 0)
      r = logical_index(v.shard, v.pad_rows ? v.pad_rows : full_rows, r, v.tp_rank, v.tp_size);
    else
      c = logical_index(v.shard, full_cols, c, v.tp_rank, v.tp_size);
  }
  return r < full_rows ? r * full_cols + c : -1;
}

void assign_over_tp(std::vector<ShardView>& views) {
  std::vector<ShardView*> pieces;
  for (ShardView& v : views)
    if (v.shard.kind != ShardSpec::Kind::kSplit && v.tp_size > 1 && (v.save || v.assigned_elsewhere))
      pieces.push_back(&v);
  std::sort(pieces.begin(), pieces.end(), [](const ShardView* a, const ShardView* b) {
    return std::make_tuple(-a->data.bytes(), std::ref(a->name), a->begin) <
           std::make_tuple(-b->data.bytes(), std::ref(b->name), b->begin);
  });
  std::vector<int64_t> dealt;
  for (ShardView* v : pieces) {
    dealt.resize(static_cast<size_t>(v->tp_size));
    const auto least = std::min_element(dealt.begin(), dealt.end());
    *least += v->data.bytes();
    v->save = least - dealt.begin() == v->tp_rank;
    v->assigned_elsewhere = !v->save;
  }
}

}  // namespace gt
