// Dropout (Srivastava et al. 2014) masks as a pure function of (stream key, sample ordinal, element): a mask is never
// stored and does not depend on layout, execution order or resume point. Element e of sample n is kept iff word e mod 4
// of philox(key, e / 4, n) (kernels/core/rng.h) is >= threshold; kept elements are multiplied by `scale`, others by 0.
// Must not use the standard library: included by files compiled per instruction set.
#pragma once
#include "kernels/core/positions.h"

namespace gt {

struct DropMask {
  uint64_t key = 0;          // stream_key(seed, "dropout/<module path>")
  uint32_t threshold = 0;    // floor(P 2^32); 0: no dropout
  float scale = 1;           // 1 / (1 - P), times any further factor of kept elements
  int64_t first_sample = 0;  // ordinal of the microbatch's first sequence
  // If set: device address of that ordinal, so a replayed launch uses its current value.
  const int64_t* first_sample_at = nullptr;
  // Host only, for ops that run there.
  constexpr int64_t first() const { return first_sample_at != nullptr ? *first_sample_at : first_sample; }
  explicit operator bool() const { return threshold != 0 || scale != 1; }
};

// p in [0, 1).
constexpr DropMask drop_mask(uint64_t key, double p) {
  return {key, static_cast<uint32_t>(p * 0x1p32), static_cast<float>(1 / (1 - p)), 0, nullptr};
}

// Mask of a tensor [n, C] of rows of a microbatch: e = position in the sequence * C + column. For a tensor that holds
// the columns of a wider one from first_column on, C is the wider one's width.
struct RowDrop {
  DropMask mask;
  Positions rows;
  int64_t first_column = 0, width = 0;  // honored by the op dropout alone; width 0: x holds whole rows
  explicit operator bool() const { return static_cast<bool>(mask); }
  int64_t sample(int64_t row) const { return mask.first() + rows.in_sequence(row).sequence; }
  // First element of a row of a tensor of `columns` columns.
  int64_t element(int64_t row, int64_t columns) const {
    return rows.position(row) * (width > 0 ? width : columns) + first_column;
  }
};

// Mask of attention probabilities, e = (head * seq + query) * seq + key, by positions in sequences of `seq` tokens.
// `first_head`: index of this rank's first query head among all heads of the layer.
struct HeadDrop {
  DropMask mask;
  int64_t first_head = 0, seq = 0;
  explicit operator bool() const { return static_cast<bool>(mask); }
};

}  // namespace gt
