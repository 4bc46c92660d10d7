// The shuffle of numpy's legacy generator, so that orders of samples equal those of other trainers bit for bit.
// MT19937: Matsumoto and Nishimura, "Mersenne Twister", ACM TOMACS 8(1), 1998. Only orders that others have use it (and
// llm.c's initial weights, launch/engine/torch_init.h); all else draws from the counter generator of kernels/core/rng.h.
#pragma once
#include <cstdint>
#include <random>
#include <span>
#include <utility>

#include "kernels/core/check.h"

namespace gt {

// Equals numpy.random.RandomState(seed) for shuffles of fewer than 2^32 elements.
class NumpyShuffle {
 public:
  explicit NumpyShuffle(uint32_t seed) : engine_(seed) {}

  uint32_t next() { return static_cast<uint32_t>(engine_()); }

  // Uniform in 0..m (m included): masked rejection. Draws nothing for m = 0.
  uint32_t below(uint32_t m) {
    if (m == 0) return 0;
    uint32_t mask = m;
    for (int shift : {1, 2, 4, 8, 16}) mask |= mask >> shift;
    uint32_t v = next() & mask;
    while (v > m) v = next() & mask;
    return v;
  }

  template <class T>
  void shuffle(std::span<T> a) {
    GT_CHECK(a.size() < (uint64_t{1} << 32), "shuffle of ", a.size(), " elements");
    for (size_t i = a.size(); i-- > 1;) std::swap(a[i], a[below(static_cast<uint32_t>(i))]);
  }

 private:
  std::mt19937 engine_;  // the standard fixes its seeding (init_genrand) and tempering
};

}  // namespace gt
