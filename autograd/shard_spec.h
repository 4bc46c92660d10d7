// How tensor parallelism splits a parameter, as data, and the index arithmetic. Ranks appear as two numbers only.
#pragma once
#include "kernels/core/tensor.h"

namespace gt {

// OneFlow's S/B/P, DTensor's Shard/Replicate/Partial.
//   replicate: every tp rank holds all of it and computes the same gradient;
//   split:     each rank holds a slice along `dim`; with `blocks` > 1 the dimension is that many blocks (Q, K, V), each
//              split on its own;
//   partial:   every tp rank holds all of it; gradients are partial sums over tp (sequence parallelism).
struct ShardSpec {
  enum class Kind : uint8_t { kReplicate, kSplit, kPartial } kind = Kind::kReplicate;
  int8_t dim = 0;
  int8_t blocks = 1;
  // For fused QKV: heads of the first block and of each other one. 0: equal blocks, split anywhere. Blocks with fewer
  // heads than TP ranks are split by heads: tp / kv_heads consecutive ranks hold the same head, and their gradients of
  // it are partial sums.
  int32_t heads = 0, kv_heads = 0;

  static constexpr ShardSpec replicate() { return {}; }
  static constexpr ShardSpec partial() { return {Kind::kPartial, 0, 1, 0, 0}; }
  static constexpr ShardSpec split(int dim, int blocks = 1) {
    return {Kind::kSplit, static_cast<int8_t>(dim), static_cast<int8_t>(blocks), 0, 0};
  }
  // [Q; K; V] along dimension 0, with heads, kv_heads and kv_heads heads.
  static constexpr ShardSpec qkv(int64_t heads, int64_t kv_heads) {
    return {Kind::kSplit, 0, 3, static_cast<int32_t>(heads), static_cast<int32_t>(kv_heads)};
  }
  // [Q; K], the same.
  static constexpr ShardSpec qk(int64_t heads, int64_t kv_heads) {
    return {Kind::kSplit, 0, 2, static_cast<int32_t>(heads), static_cast<int32_t>(kv_heads)};
  }
  // Number of consecutive TP ranks that hold the same KV heads.
  constexpr int copies(int tp_size) const {
    return kv_heads > 0 && kv_heads < tp_size ? tp_size / static_cast<int>(kv_heads) : 1;
  }
  friend constexpr bool operator==(ShardSpec, ShardSpec) = default;
};

// A tp rank's slice of one block: local indices [local, local + count) of the dimension are logical indices [at, at +
// count).
struct BlockSlice {
  int64_t local = 0, count = 0, at = 0;
};

// Returns the slice that contains index `local` of a split dimension of logical extent `full` (padding included).
constexpr BlockSlice block_slice(const ShardSpec& s, int64_t full, int64_t local, int tp_rank, int tp_size) {
  const auto equal = [&](int64_t before, int64_t at,
                         int64_t block) -> BlockSlice {  // blocks of equal size from there on
    const int64_t part = block / tp_size, i = (local - before) / part;
    return {before + i * part, part, at + i * block + tp_rank * part};
  };
  if (s.heads == 0) return equal(0, 0, full / s.blocks);
  const int64_t head = full / (s.heads + (s.blocks - 1) * s.kv_heads), q = s.heads * head;
  if (local < q / tp_size) return equal(0, 0, q);
  if (s.copies(tp_size) == 1) return equal(q / tp_size, q, s.kv_heads * head);
  const int64_t i = (local - q / tp_size) / head;
  return {q / tp_size + i * head, head, q + (i * s.kv_heads + tp_rank / s.copies(tp_size)) * head};
}

// Returns the logical index of local index `local`.
constexpr int64_t logical_index(const ShardSpec& s, int64_t full, int64_t local, int tp_rank, int tp_size) {
  const BlockSlice b = block_slice(s, full, local, tp_rank, tp_size);
  return b.at + local - b.local;
}

// Returns the local extent of a split dimension of logical extent `full`; -1 if it cannot be split over tp_size ranks.
constexpr int64_t local_extent(const ShardSpec& s, int64_t full, int tp_size) {
  if (s.heads == 0) return full % (int64_t{s.blocks} * tp_size) == 0 ? full / tp_size : -1;
  const int64_t all = s.heads + int64_t{s.blocks - 1} * s.kv_heads, copies = s.copies(tp_size);
  if (s.heads < 0 || s.kv_heads <= 0 || all <= 0) return -1;
  if (full % all != 0 || s.heads % s.kv_heads != 0 || s.heads % tp_size != 0 || s.kv_heads * copies % tp_size != 0)
    return -1;
  return full / all * (s.heads + (s.blocks - 1) * s.kv_heads * copies) / tp_size;
}

// Returns the local indices of one block of a split dimension: [first, first + count). Requires: local_extent() >= 0.
struct BlockRange {
  int64_t first = 0, count = 0;
};
constexpr BlockRange local_block(const ShardSpec& s, int64_t full, int block, int tp_size) {
  const int64_t all = local_extent(s, full, tp_size);
  if (s.heads == 0) return {block * (all / s.blocks), all / s.blocks};
  const int64_t first = full / (s.heads + int64_t{s.blocks - 1} * s.kv_heads) * s.heads / tp_size;
  if (block == 0) return {0, first};
  const int64_t other = (all - first) / (s.blocks - 1);
  return {first + (block - 1) * other, other};
}

// Returns how many leading local indices exist on this rank alone; copies() ranks share the rest.
constexpr int64_t unshared_extent(const ShardSpec& s, int64_t full, int tp_size) {
  if (s.copies(tp_size) == 1) return local_extent(s, full, tp_size);
  return full / (s.heads + int64_t{s.blocks - 1} * s.kv_heads) * s.heads / tp_size;
}

}  // namespace gt
