// Which elements dropout (Srivastava et al. 2014) keeps: a pure function of (stream key, sample ordinal, element), so a
// mask is never stored and never depends on the layout, the order of work or the point of resumption. Element e of
// sample n is kept iff word e mod 4 of philox(key, e / 4, n) (kernels/core/rng.h) is >= threshold, and is then
// multiplied by `scale`; others by 0. No standard library here: files compiled per instruction set include this.
#pragma once
#include <cstdint>

namespace gt {

struct DropMask {
  uint64_t key = 0;          // stream_key(seed, "dropout/<module path>")
  uint32_t threshold = 0;    // floor(P 2^32); 0: nothing is dropped
  float scale = 1;           // 1 / (1 - P), times what else the kept elements are multiplied by
  int64_t first_sample = 0;  // ordinal of the microbatch's first sequence
  // Given: where the op's device finds that number instead, so that a launch which is repeated as it was follows it.
  const int64_t* first_sample_at = nullptr;
  // On the host, where the op runs there.
  constexpr int64_t first() const { return first_sample_at != nullptr ? *first_sample_at : first_sample; }
  explicit operator bool() const { return threshold != 0 || scale != 1; }
};

// p in [0, 1).
constexpr DropMask drop_mask(uint64_t key, double p) {
  return {key, static_cast<uint32_t>(p * 0x1p32), static_cast<float>(1 / (1 - p)), 0, nullptr};
}

// The mask of a tensor [n, C] whose rows are rows first_row .. first_row + n - 1 of a microbatch [batch * seq, C]:
// row r is position r mod seq of sequence r / seq, and e = position * C + column.
struct RowDrop {
  DropMask mask;
  int64_t seq = 1, first_row = 0;
  explicit operator bool() const { return static_cast<bool>(mask); }
  int64_t sample(int64_t row) const { return mask.first() + (first_row + row) / seq; }
  int64_t position(int64_t row) const { return (first_row + row) % seq; }
};

// The mask of attention probabilities, e = (head * seq + query) * seq + key: `first_head` is the number of this rank's
// first query head among all heads of the layer.
struct HeadDrop {
  DropMask mask;
  int64_t first_head = 0;
  explicit operator bool() const { return static_cast<bool>(mask); }
};

}  // namespace gt
