// A random order of [0, n) without a table: a Feistel network over the smallest even number of bits that holds n,
// walked along its cycles until it is below n again (Black and Rogaway 2002, "Ciphers with arbitrary finite domains").
// The round function is Philox.
#pragma once
#include <cstdint>

#include "kernels/core/check.h"
#include "kernels/core/rng.h"

namespace gt {

class Permutation {
 public:
  Permutation(uint64_t key, int64_t n) : key_(key), n_(static_cast<uint64_t>(n)) {
    GT_CHECK(n >= 1, "a permutation of ", n);
    while (half_ < 31 && uint64_t{1} << (2 * half_) < n_) ++half_;
  }
  // Returns the image of k. Requires: 0 <= k < n.
  int64_t operator()(int64_t k) const {
    auto x = static_cast<uint64_t>(k);
    do x = rounds(x);
    while (x >= n_);
    return static_cast<int64_t>(x);
  }

 private:
  uint64_t rounds(uint64_t x) const {
    const uint64_t mask = (uint64_t{1} << half_) - 1;
    uint64_t left = x >> half_, right = x & mask;
    for (uint64_t round = 0; round < 6; ++round) {
      const uint64_t next = left ^ (philox(key_, right, round)[0] & mask);
      left = right, right = next;
    }
    return left << half_ | right;
  }
  uint64_t key_, n_;
  int half_ = 1;  // bits
};

}  // namespace gt
