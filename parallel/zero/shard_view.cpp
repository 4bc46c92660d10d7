#include "parallel/zero/shard_view.h"

#include <algorithm>
#include <tuple>

namespace gt {

ShardView view_of(const Parameter& p, const RankCoordinates& at) {
  return {.name = p.tied_to.empty() ? p.name : p.tied_to,
          .data = {},
          .full = p.full_shape,
          .local = p.local_shape,
          .shard = p.shard,
          .at = at,
          .pad_rows = p.pad_rows};
}

BlockSlice block_slice(const ShardView& v, int dim, int64_t local) {
  return block_slice(v.shard, dim, dim == 0 && v.pad_rows > 0 ? v.pad_rows : v.full[dim], local, v.at);
}

int64_t logical_offset(const ShardView& v, int64_t local) {
  int64_t offset = 0, stride = 1;
  for (int d = v.full.rank; d-- > 0; local /= v.local[d], stride *= v.full[d]) {
    const int64_t index = local % v.local[d];
    const BlockSlice b = block_slice(v, d, index);
    offset += (b.at + index - b.local) * stride;
  }
  return offset < v.full.numel() ? offset : -1;
}

void assign_over_tp(std::vector<ShardView>& views) {
  std::vector<ShardView*> pieces;
  for (ShardView& v : views)
    if (!v.shard.tp().splits() && v.at[Axis::kTp].size > 1 && (v.save || v.assigned_elsewhere)) pieces.push_back(&v);
  std::sort(pieces.begin(), pieces.end(), [](const ShardView* a, const ShardView* b) {
    return std::make_tuple(-a->data.bytes(), std::ref(a->name), a->begin) <
           std::make_tuple(-b->data.bytes(), std::ref(b->name), b->begin);
  });
  std::vector<int64_t> dealt;
  for (ShardView* v : pieces) {
    dealt.resize(static_cast<size_t>(v->at[Axis::kTp].size));
    const auto least = std::min_element(dealt.begin(), dealt.end());
    *least += v->data.bytes();
    v->save = least - dealt.begin() == v->at[Axis::kTp].rank;
    v->assigned_elsewhere = !v->save;
  }
}

}  // namespace gt
