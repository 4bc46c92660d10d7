#include "data/tokens/token_slice.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "kernels/core/rng.h"

namespace gt {

TokenSlice::TokenSlice(std::unique_ptr<TokenStore> whole, int64_t begin, int64_t end) : whole_(std::move(whole)) {
  GT_CHECK(0 <= begin && begin < end && end <= whole_->tokens(), begin, " to ", end, " of ", whole_->tokens());
  prefix_ = whole_->prefix();
  type_ = whole_->type();
  fingerprint_ = whole_->fingerprint();
  fingerprint_.ends_xxh3 =  // keys the cached orders of this range
      splitmix64(splitmix64(fingerprint_.ends_xxh3 ^ static_cast<uint64_t>(begin)) ^ static_cast<uint64_t>(end));
  tokens_ = end - begin;
  const Lengths all = whole_->lengths();
  int64_t at = 0;  // token index where sequence s begins
  for (int64_t s = all.begin; s < all.end && at < end; at += all[s++]) {
    const int64_t from = std::max(at, begin), to = std::min(at + all[s], end);
    if (from >= to) continue;
    if (lengths_.empty()) first_ = s, skipped_ = from - at;
    while (first_ + static_cast<int64_t>(lengths_.size()) < s) lengths_.push_back(0);  // empty ones in between
    lengths_.push_back(static_cast<int32_t>(to - from));
  }
  sequences_ = documents_ = static_cast<int64_t>(lengths_.size());
}

std::string TokenSlice::locate(int64_t sequence, int64_t index) const {
  return whole_->locate(first_ + sequence, offset(sequence) + index);
}

uint64_t TokenSlice::read(int64_t sequence, int64_t begin, std::span<int32_t> out) const {
  return whole_->read(first_ + sequence, offset(sequence) + begin, out);
}

void TokenSlice::read_mask(int64_t sequence, int64_t begin, std::span<uint8_t> out) const {
  whole_->read_mask(first_ + sequence, offset(sequence) + begin, out);
}

void TokenSlice::will_need(int64_t sequence, int64_t begin, int64_t count) const {
  whole_->will_need(first_ + sequence, offset(sequence) + begin, count);
}

}  // namespace gt
