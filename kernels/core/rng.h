// Counter-based RNG: ranks hold no generator state. A draw is a pure function of (seed, stream name, n, element), so
// masks and initial weights are identical for every layout and resume point. Philox4x32-10: Salmon et al., "Parallel
// random numbers: as easy as 1, 2, 3", SC'11.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace gt {

constexpr uint64_t splitmix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

constexpr uint64_t fnv1a64(std::string_view s) {
  uint64_t h = 0xCBF29CE484222325ull;
  for (char c : s) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001B3ull;
  return h;
}

// Key of a named stream, such as "init/layers.0.attn.qkv.weight".
constexpr uint64_t stream_key(uint64_t seed, std::string_view name) { return splitmix64(seed ^ fnv1a64(name)); }

// Four 32-bit words of one counter. counter = (c low, c high, n low, n high), key low word first.
constexpr std::array<uint32_t, 4> philox(uint64_t key, uint64_t c, uint64_t n) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  std::array<uint32_t, 4> x{static_cast<uint32_t>(c), static_cast<uint32_t>(c >> 32), static_cast<uint32_t>(n),
                            static_cast<uint32_t>(n >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = 0xD2511F53ull * x[0], b = 0xCD9E8D57ull * x[2];
    x = {static_cast<uint32_t>(b >> 32) ^ x[1] ^ k0, static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ x[3] ^ k1, static_cast<uint32_t>(a)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return x;
}

// Returns standard normal sample `e` of the stream, by Box-Muller in f64 (two samples per counter).
double philox_normal(uint64_t key, uint64_t e);
// Writes samples first .. first + count - 1, times `stddev`, rounded to f32: the same values in half the time.
void philox_normals(uint64_t key, uint64_t first, int64_t count, double stddev, float* out);

}  // namespace gt
