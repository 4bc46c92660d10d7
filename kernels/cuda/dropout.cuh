// Dropout factors on the device: Philox4x32-10; see kernels/core/dropout.h and kernels/core/rng.h.
#pragma once
#include "kernels/core/dropout.h"
#include "kernels/cuda/context.h"

namespace gt::cuda {

// Philox4x32-10 of counter (c, n).
__device__ inline uint4 philox(uint64_t key, uint64_t c, uint64_t n) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint4 x = make_uint4(static_cast<uint32_t>(c), static_cast<uint32_t>(c >> 32), static_cast<uint32_t>(n),
                       static_cast<uint32_t>(n >> 32));
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t a = __umulhi(0xD2511F53u, x.x), b = __umulhi(0xCD9E8D57u, x.z);
    x = make_uint4(b ^ x.y ^ k0, 0xCD9E8D57u * x.z, a ^ x.w ^ k1, 0xD2511F53u * x.x);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return x;
}

// Word e of the random stream (key, n).
__device__ inline uint32_t random_word(uint64_t key, uint64_t n, int64_t e) {
  const uint4 x = philox(key, static_cast<uint64_t>(e) / 4, n);
  const uint32_t which = static_cast<uint32_t>(e) % 4;
  return which < 2 ? (which == 0 ? x.x : x.y) : (which == 2 ? x.z : x.w);
}

// Ordinal of the first sample; read from device memory if set, so that graph replays can change it.
__device__ inline int64_t first_sample(const DropMask& m) {
  return m.first_sample_at != nullptr ? __ldg(m.first_sample_at) : m.first_sample;
}

// Returns the factor of element e of a sample: the mask's scale or 0.
__device__ inline float drop_factor(const DropMask& m, int64_t sample, int64_t e) {
  return random_word(m.key, static_cast<uint64_t>(sample), e) >= m.threshold ? m.scale : 0.0f;
}

// v[0..V) *= factors of elements e .. e + V - 1. Requires: for V > 1, V and e are multiples of 4.
template <int V>
__device__ inline void drop(const DropMask& m, int64_t sample, int64_t e, float (&v)[V]) {
  if constexpr (V == 1) {
    v[0] *= drop_factor(m, sample, e);
  } else {
    static_assert(V % 4 == 0);
#pragma unroll
    for (int j = 0; j < V; j += 4) {
      const uint4 x = philox(m.key, static_cast<uint64_t>(e + j) / 4, static_cast<uint64_t>(sample));
      v[j] *= x.x >= m.threshold ? m.scale : 0.0f;
      v[j + 1] *= x.y >= m.threshold ? m.scale : 0.0f;
      v[j + 2] *= x.z >= m.threshold ? m.scale : 0.0f;
      v[j + 3] *= x.w >= m.threshold ? m.scale : 0.0f;
    }
  }
}

// The same for elements c .. c + V - 1 of a row of `cols`. Requires: for V > 1, V, c and cols are multiples of 4.
template <int V>
__device__ inline void drop(const RowDrop& d, int64_t row, int64_t cols, int64_t c, float (&v)[V]) {
  const auto [sequence, at] = d.rows.in_sequence(row);
  drop<V>(d.mask, sequence + first_sample(d.mask), d.rows.position_of_row(at) * cols + c, v);
}

}  // namespace gt::cuda
