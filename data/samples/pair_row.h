// A sample of a masked language model as one row of i32: tokens, targets and token types [seq] each, then the length
// and the label of the pair. Behind the length: padding, without targets.
#pragma once
#include <cstdint>
#include <span>

namespace gt {

struct PairRow {
  std::span<int32_t> row;
  int64_t seq = 0;
  static constexpr int64_t width(int64_t seq) { return 3 * seq + 2; }
  std::span<int32_t> tokens() const { return part(0); }
  std::span<int32_t> targets() const { return part(1); }  // -1: no loss
  std::span<int32_t> types() const { return part(2); }    // 0, in the second sentence 1
  int32_t& length() const { return row[static_cast<size_t>(3 * seq)]; }
  int32_t& label() const {
    return row[static_cast<size_t>(3 * seq + 1)];
  }  // 0: the second sentence follows the first; 1: it does not

 private:
  std::span<int32_t> part(int64_t k) const {
    return row.subspan(static_cast<size_t>(k * seq), static_cast<size_t>(seq));
  }
};

}  // namespace gt
