// How mesh axes split a parameter, as data, and the index arithmetic.
#pragma once
#include <algorithm>

#include "autograd/axis.h"
#include "kernels/core/tensor.h"

namespace gt {

// How one axis splits a dimension. Not split along any: the axis replicates the parameter.
struct AxisShard {
  static constexpr int8_t kReplicate = -1, kPartial = -2;
  Axis axis = Axis::kTp;
  int8_t dim = kReplicate;
  int8_t blocks = 1;
  // For fused QKV: heads of the first block and of each other one. 0: equal blocks, split anywhere. Blocks with fewer
  // heads than ranks are split by heads: size / kv_heads consecutive ranks hold the same head, and their gradients of
  // it are partial sums.
  int32_t heads = 0, kv_heads = 0;

  constexpr bool splits() const { return dim >= 0; }
  constexpr bool named() const { return dim != kReplicate; }
  // Number of consecutive ranks that hold the same KV heads.
  constexpr int copies(int size) const {
    return kv_heads > 0 && kv_heads < size ? size / static_cast<int>(kv_heads) : 1;
  }
  friend constexpr bool operator==(const AxisShard&, const AxisShard&) = default;
};

// OneFlow's S/B/P, DTensor's Shard/Replicate/Partial, of each axis outside of the domain that reduces the gradients.
//   replicate: every rank of the axis holds all of it and computes the same gradient;
//   split:     each rank holds a slice along `dim`; with `blocks` > 1 the dimension is that many blocks (Q, K, V), each
//              split on its own;
//   partial:   every rank holds all of it; gradients are partial sums over the axis (sequence parallelism).
// Axes without an entry replicate. Entries that split one dimension are listed from the outermost: each splits the
// slice that the ones before it leave.
struct ShardSpec {
  std::array<AxisShard, 2> axes;

  static constexpr ShardSpec replicate() { return {}; }
  static constexpr ShardSpec partial() { return one({.dim = AxisShard::kPartial}); }
  static constexpr ShardSpec split(int dim, int blocks = 1, Axis axis = Axis::kTp) {
    return one({.axis = axis, .dim = static_cast<int8_t>(dim), .blocks = static_cast<int8_t>(blocks)});
  }
  // [Q; K; V] along dimension 0, with heads, kv_heads and kv_heads heads.
  static constexpr ShardSpec qkv(int64_t heads, int64_t kv_heads) { return grouped(3, heads, kv_heads); }
  // [Q; K], the same.
  static constexpr ShardSpec qk(int64_t heads, int64_t kv_heads) { return grouped(2, heads, kv_heads); }
  // Both; along one dimension `inner` splits what this one leaves. Requires: different axes.
  constexpr ShardSpec then(const ShardSpec& inner) const {
    ShardSpec all = *this;
    auto next = std::find_if(all.axes.begin(), all.axes.end(), [](const AxisShard& a) { return !a.named(); });
    for (const AxisShard& a : inner.axes)
      if (a.named()) *next++ = a;
    return all;
  }
  constexpr AxisShard of(Axis axis) const {
    for (const AxisShard& a : axes)
      if (a.axis == axis) return a;
    return {.axis = axis};
  }
  constexpr AxisShard tp() const { return of(Axis::kTp); }
  // The splits of one dimension.
  constexpr ShardSpec along(int dim) const {
    ShardSpec out;
    for (const AxisShard& a : axes)
      if (a.dim == dim) out = out.then(one(a));
    return out;
  }
  friend constexpr bool operator==(const ShardSpec&, const ShardSpec&) = default;

 private:
  static constexpr ShardSpec one(AxisShard a) { return {{a, AxisShard{}}}; }
  static constexpr ShardSpec grouped(int8_t blocks, int64_t heads, int64_t kv_heads) {
    return one({Axis::kTp, 0, blocks, static_cast<int32_t>(heads), static_cast<int32_t>(kv_heads)});
  }
};

// A rank's slice of one block: local indices [local, local + count) of the dimension are logical indices [at, at +
// count).
struct BlockSlice {
  int64_t local = 0, count = 0, at = 0;
};

// Returns the slice that contains index `local` of a dimension of extent `full` that an axis splits.
constexpr BlockSlice block_slice(const AxisShard& s, int64_t full, int64_t local, AxisPosition on) {
  const auto equal = [&](int64_t before, int64_t at,
                         int64_t block) -> BlockSlice {  // blocks of equal size from there on
    const int64_t part = block / on.size, i = (local - before) / part;
    return {before + i * part, part, at + i * block + on.rank * part};
  };
  if (s.heads == 0) return equal(0, 0, full / s.blocks);
  const int64_t head = full / (s.heads + (s.blocks - 1) * s.kv_heads), q = s.heads * head;
  if (local < q / on.size) return equal(0, 0, q);
  if (s.copies(on.size) == 1) return equal(q / on.size, q, s.kv_heads * head);
  const int64_t i = (local - q / on.size) / head;
  return {q / on.size + i * head, head, q + (i * s.kv_heads + on.rank / s.copies(on.size)) * head};
}

// Returns the local extent of a dimension of extent `full` that an axis splits; -1 if it cannot be split over so many
// ranks.
constexpr int64_t local_extent(const AxisShard& s, int64_t full, int size) {
  if (s.heads == 0) return full % (int64_t{s.blocks} * size) == 0 ? full / size : -1;
  const int64_t all = s.heads + int64_t{s.blocks - 1} * s.kv_heads, copies = s.copies(size);
  if (s.heads < 0 || s.kv_heads <= 0 || all <= 0) return -1;
  if (full % all != 0 || s.heads % s.kv_heads != 0 || s.heads % size != 0 || s.kv_heads * copies % size != 0) return -1;
  return full / all * (s.heads + (s.blocks - 1) * s.kv_heads * copies) / size;
}

// The same of dimension `dim` of logical extent `full` (padding included), over all axes that split it.
constexpr int64_t local_extent(const ShardSpec& s, int dim, int64_t full, const RankCoordinates& at) {
  for (const AxisShard& a : s.axes)
    if (a.dim == dim && full >= 0) full = local_extent(a, full, at[a.axis].size);
  return full;
}
constexpr BlockSlice block_slice(const ShardSpec& s, int dim, int64_t full, int64_t local, const RankCoordinates& at) {
  std::array<int64_t, 2> extents{};  // of what each entry splits
  for (size_t k = 0; k < s.axes.size(); ++k) {
    extents[k] = full;
    if (s.axes[k].dim == dim) full = local_extent(s.axes[k], full, at[s.axes[k].axis].size);
  }
  BlockSlice all{0, full, 0};
  for (size_t k = s.axes.size(); k-- > 0;) {
    if (s.axes[k].dim != dim) continue;
    const BlockSlice outer = block_slice(s.axes[k], extents[k], all.at + local - all.local, at[s.axes[k].axis]);
    const int64_t from = std::max(all.at, outer.local), to = std::min(all.at + all.count, outer.local + outer.count);
    all = {all.local + from - all.at, to - from, outer.at + from - outer.local};
  }
  return all;
}

// Returns the logical index of local index `local`.
constexpr int64_t logical_index(const ShardSpec& s, int dim, int64_t full, int64_t local, const RankCoordinates& at) {
  const BlockSlice b = block_slice(s, dim, full, local, at);
  return b.at + local - b.local;
}

// Returns the local indices of one block of a split dimension: [first, first + count). Requires: local_extent() >= 0.
struct BlockRange {
  int64_t first = 0, count = 0;
};
constexpr BlockRange local_block(const AxisShard& s, int64_t full, int block, int size) {
  const int64_t all = local_extent(s, full, size);
  if (s.heads == 0) return {block * (all / s.blocks), all / s.blocks};
  const int64_t first = full / (s.heads + int64_t{s.blocks - 1} * s.kv_heads) * s.heads / size;
  if (block == 0) return {0, first};
  const int64_t other = (all - first) / (s.blocks - 1);
  return {first + (block - 1) * other, other};
}

// Returns how many leading local indices exist on this rank alone; copies() ranks share the rest.
constexpr int64_t unshared_extent(const AxisShard& s, int64_t full, int size) {
  if (s.copies(size) == 1) return local_extent(s, full, size);
  return full / (s.heads + int64_t{s.blocks - 1} * s.kv_heads) * s.heads / size;
}

}  // namespace gt
