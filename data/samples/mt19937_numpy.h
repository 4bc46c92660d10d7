// The shuffle of numpy's legacy generator, for sample orders bitwise identical to those of other trainers. MT19937:
// Matsumoto and Nishimura, "Mersenne Twister", ACM TOMACS 8(1), 1998. Used only for such orders (and for llm.c's
// initial weights, launch/engine/torch_init.h); everything else uses the counter-based generator of kernels/core/rng.h.
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

  // Uniform in [0, m], by masked rejection. Draws nothing for m = 0.
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
  std::mt19937 engine_;  // seeding (init_genrand) and tempering are fixed by the standard
};

}  // namespace gt
