// Dropout factors and stochastic rounding from Philox4x32-10 (kernels/core/rng.h), many counters at a time; part of
// every simd_table.h. A 32-bit generator word occupies the low half of a 64-bit lane, so a product of two
// words keeps both halves; the high half is never read as input.
#pragma once
#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/simd/vec.h"

namespace gt::cpu {
namespace {

typedef uint64_t VecLong __attribute__((vector_size(kLanes * 4)));
constexpr int kCounters = kLanes / 2;  // per VecLong

inline VecLong splat_long(uint64_t x) { return x - VecLong{}; }

// Products of the low halves.
inline VecLong times_low(VecLong x, uint64_t factor) {
#if defined(__AVX512F__)
  return (VecLong)_mm512_maskz_mul_epu32(0xFF, (__m512i)x, (__m512i)splat_long(factor));
#elif defined(__AVX2__)
  return (VecLong)_mm256_mul_epu32((__m256i)x, (__m256i)splat_long(factor));
#else
  return (x & 0xFFFFFFFFu) * factor;
#endif
}

struct Words {
  VecLong x[4];
};  // four words of each counter, in low halves

inline Words philox(uint64_t key, VecLong counter, uint64_t n) {
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  VecLong x0 = counter, x1 = counter >> 32, x2 = splat_long(n), x3 = splat_long(n >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const VecLong a = times_low(x0, 0xD2511F53u), b = times_low(x2, 0xCD9E8D57u);
    x0 = (b >> 32) ^ x1 ^ splat_long(k0);
    x2 = (a >> 32) ^ x3 ^ splat_long(k1);
    x1 = b;
    x3 = a;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{x0, x1, x2, x3}};
}

inline VecBits low_and_high(VecLong low, VecLong high) { return (VecBits)((low & 0xFFFFFFFFu) | high << 32); }

struct Factors {
  VecBits threshold;
  Vec scale;
  explicit Factors(const DropMask& m) : threshold(m.threshold - VecBits{}), scale(splat(m.scale)) {}
  Vec operator()(VecBits word) const { return word >= threshold ? scale : Vec{}; }
};

// Words of elements 4 c .. 4 c + 2 kLanes - 1, in order. Counters are placed in lanes as the two unpack instructions
// require.
struct TwoVectors {
  VecBits low, high;
};
inline TwoVectors words_of(uint64_t key, uint64_t sample, uint64_t c) {
  VecLong counter = splat_long(c);
  for (int i = 0; i < kCounters; ++i) counter[i] += static_cast<uint64_t>(i % 2 * (kCounters / 2) + i / 2);
  const Words w = philox(key, counter, sample);
  const VecBits a = low_and_high(w.x[0], w.x[1]), b = low_and_high(w.x[2], w.x[3]);
#if defined(__AVX512F__)
  return {(VecBits)_mm512_maskz_unpacklo_epi64(0xFF, (__m512i)a, (__m512i)b),
          (VecBits)_mm512_maskz_unpackhi_epi64(0xFF, (__m512i)a, (__m512i)b)};
#elif defined(__AVX2__)
  return {(VecBits)_mm256_unpacklo_epi64((__m256i)a, (__m256i)b),
          (VecBits)_mm256_unpackhi_epi64((__m256i)a, (__m256i)b)};
#else
  return {VecBits{a[0], a[1], b[0], b[1]}, VecBits{a[2], a[3], b[2], b[3]}};
#endif
}

inline void factors_of(const DropMask& m, const Factors& f, uint64_t sample, uint64_t c, float* to) {
  const TwoVectors w = words_of(m.key, sample, c);
  store(to, f(w.low));
  store(to + kLanes, f(w.high));
}

// Factors of elements first .. first + n - 1 of one sample.
void drop_factors_n(const DropMask& m, int64_t sample, int64_t first, int64_t n, float* out) {
  const Factors f(m);
  if (m.threshold == 0) {  // no dropout: no random words needed
    for (int64_t i = 0; i < n; ++i) out[i] = m.scale;
    return;
  }
  const auto s = static_cast<uint64_t>(sample);
  auto counter = static_cast<uint64_t>(first) / 4;
  float part[2 * kLanes];
  for (int64_t i = 0, skip = first % 4; i < n; counter += kCounters) {
    if (skip == 0 && i + 2 * kLanes <= n) {
      factors_of(m, f, s, counter, out + i);
      i += 2 * kLanes;
      continue;
    }
    factors_of(m, f, s, counter, part);
    const int64_t count = n - i < 2 * kLanes - skip ? n - i : 2 * kLanes - skip;
    __builtin_memcpy(out + i, part + skip, static_cast<uint64_t>(count) * sizeof(float));
    i += count;
    skip = 0;
  }
}

// Adds 16 random bits below the bf16 mantissa. Infinity and NaN (exponent all ones) must not change.
inline uint16_t round_at_random(float x, uint32_t word) {
  const uint32_t u = __builtin_bit_cast(uint32_t, x);
  const bool finite = (u & 0x7F800000u) != 0x7F800000u;
  const uint32_t quiet = (u & 0x7FFFFFFFu) > 0x7F800000u ? 0x40u : 0u;
  return static_cast<uint16_t>(((finite ? u + (word >> 16) : u) >> 16) | quiet);
}

void stochastic_bf16_n(uint64_t key, uint64_t step, int64_t first, const float* x, uint16_t* out, int64_t n) {
  auto counter = static_cast<uint64_t>(first) / 4;
  for (int64_t i = 0, skip = first % 4; i < n; counter += kCounters) {
    const TwoVectors words = words_of(key, step, counter);
    uint32_t part[2 * kLanes];
    __builtin_memcpy(part, &words, sizeof part);
    const int64_t count = n - i < 2 * kLanes - skip ? n - i : 2 * kLanes - skip;
    for (int64_t k = 0; k < count; ++k) out[i + k] = round_at_random(x[i + k], part[skip + k]);
    i += count;
    skip = 0;
  }
}

// Attention dropout factors of one block, [key][query] like its scores: rows of kAttentionBlock floats, one vector of
// queries at a time, `key_count(q)` keys for the vector at q. Element (query, key) is (head * length + query) * length
// + key, by positions. If length and the first key's position are multiples of 4, every query has the same groups of
// keys per counter.
template <class KeyCount>
inline void attention_factors(const AttentionShape& h, int64_t first_query, int64_t queries, int64_t first_key,
                              KeyCount key_count, float* to) {
  const Factors f(*h.drop);
  const int64_t length = h.drop_length, key0 = h.first_key + first_key;
  const auto seq = static_cast<uint64_t>(length), sample = static_cast<uint64_t>(h.sample);
  const int64_t step = length % 4 == 0 && key0 % 4 == 0 ? 4 : 1;
  for (int64_t q = 0; q < queries; q += kLanes) {
    VecLong even{};
    for (int i = 0; i < kCounters; ++i) {
      const int64_t row = h.head * length + h.first_query + first_query + q + 2 * i;
      even[i] = static_cast<uint64_t>(row * length + key0);
    }
    const int64_t keys = key_count(q);
    for (int64_t k = 0; k < keys; k += step) {
      const VecLong e = even + static_cast<uint64_t>(k), o = e + seq;
      const Words x = philox(h.drop->key, e >> 2, sample), y = philox(h.drop->key, o >> 2, sample);
      if (step == 4) {
        for (int64_t j = 0; j < 4 && k + j < keys; ++j)
          store(to + (k + j) * kAttentionBlock + q, f(low_and_high(x.x[j], y.x[j])));
      } else {
        const VecBits word = low_and_high(e, o) & 3u;
        VecBits w = low_and_high(x.x[3], y.x[3]);
        for (uint32_t j = 0; j < 3; ++j) w = word == j ? low_and_high(x.x[j], y.x[j]) : w;
        store(to + k * kAttentionBlock + q, f(w));
      }
    }
  }
}

void multiply_n(const float* a, const float* b, float* out, int64_t n) {
  sweep(n, [=](int64_t i, auto lanes) { lanes.store(out + i, lanes.load(a + i) * lanes.load(b + i)); });
}

}  // namespace
}  // namespace gt::cpu
