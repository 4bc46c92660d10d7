#include "kernels/core/hash/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gt {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;

// kTables[0] advances by one byte; kTables[k] by a byte followed by k zero bytes (slicing by 8, Kounavis and Berry
// 2005).
using Tables = std::array<std::array<uint32_t, 256>, 8>;
constexpr Tables make_tables() {
  Tables t{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int k = 0; k < 8; ++k) c = (c >> 1) ^ (c & 1 ? kPolynomial : 0);
    t[0][i] = c;
  }
  for (size_t k = 1; k < 8; ++k)
    for (size_t i = 0; i < 256; ++i) t[k][i] = (t[k - 1][i] >> 8) ^ t[0][t[k - 1][i] & 255];
  return t;
}
constexpr Tables kTables = make_tables();

// Product of polynomials over GF(2) of degree below 32, modulo the CRC polynomial, highest power in bit 0.
constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = (b >> 1) ^ (b & 1 ? kPolynomial : 0);
  }
  return product;
}
constexpr uint32_t power(uint64_t n) {  // x^n
  uint32_t result = 1u << 31;
  for (uint32_t square = 1u << 30; n != 0; n >>= 1, square = multiply(square, square))
    if (n & 1) result = multiply(result, square);
  return result;
}
// x^(8 * 2^k): factor of a CRC that is followed by 2^k zero bytes.
constexpr std::array<uint32_t, 64> make_powers() {
  std::array<uint32_t, 64> p{};
  p[0] = 1u << 23;
  for (size_t k = 1; k < p.size(); ++k) p[k] = multiply(p[k - 1], p[k - 1]);
  return p;
}
constexpr auto kPowers = make_powers();

#if defined(__x86_64__)
// The instruction has a latency of 3 cycles and a throughput of one per cycle: three streams of kLane bytes are
// interleaved. They are joined by shifting a CRC over kLane zero bytes, which is linear: one table look-up per byte.
constexpr size_t kLane = 1024;

using ShiftTable = std::array<std::array<uint32_t, 256>, 4>;
constexpr uint32_t zeros_after(uint32_t crc) {
  for (size_t i = 0; i < kLane; ++i) crc = (crc >> 8) ^ kTables[0][crc & 255];
  return crc;
}
constexpr ShiftTable make_shift_table() {
  uint32_t bit[32] = {};
  for (int i = 0; i < 32; ++i) bit[i] = zeros_after(1u << i);
  ShiftTable t{};
  for (size_t k = 0; k < 4; ++k)
    for (uint32_t v = 0; v < 256; ++v)
      for (uint32_t i = 0; i < 8; ++i)
        if (v >> i & 1) t[k][v] ^= bit[8 * k + i];
  return t;
}
constexpr ShiftTable kShift = make_shift_table();

uint32_t shift(uint64_t crc) {
  return kShift[0][crc & 255] ^ kShift[1][crc >> 8 & 255] ^ kShift[2][crc >> 16 & 255] ^ kShift[3][crc >> 24 & 255];
}

uint64_t load64(const unsigned char* p) {
  uint64_t x;
  std::memcpy(&x, p, 8);
  return x;
}
#endif

}  // namespace

uint32_t crc32c_table(const void* data, size_t bytes, uint32_t crc) {
  const auto* p = static_cast<const unsigned char*>(data);
  uint32_t c = ~crc;
  for (; bytes >= 8; p += 8, bytes -= 8) {
    const uint32_t low = c ^ (p[0] | p[1] << 8 | p[2] << 16 | static_cast<uint32_t>(p[3]) << 24);
    c = kTables[7][low & 255] ^ kTables[6][low >> 8 & 255] ^ kTables[5][low >> 16 & 255] ^ kTables[4][low >> 24] ^
        kTables[3][p[4]] ^ kTables[2][p[5]] ^ kTables[1][p[6]] ^ kTables[0][p[7]];
  }
  for (; bytes > 0; ++p, --bytes) c = (c >> 8) ^ kTables[0][(c ^ *p) & 255];
  return ~c;
}

#if defined(__x86_64__)
bool has_crc32c_instruction() { return __builtin_cpu_supports("sse4.2"); }

__attribute__((target("sse4.2"))) uint32_t crc32c_hardware(const void* data, size_t bytes, uint32_t crc) {
  const auto* p = static_cast<const unsigned char*>(data);
  uint64_t a = static_cast<uint32_t>(~crc);
  for (; bytes >= 3 * kLane; p += 3 * kLane, bytes -= 3 * kLane) {
    uint64_t b = 0, c = 0;
    for (size_t i = 0; i < kLane; i += 8) {
      a = _mm_crc32_u64(a, load64(p + i));
      b = _mm_crc32_u64(b, load64(p + kLane + i));
      c = _mm_crc32_u64(c, load64(p + 2 * kLane + i));
    }
    a = shift(shift(a) ^ b) ^ c;
  }
  for (; bytes >= 8; p += 8, bytes -= 8) a = _mm_crc32_u64(a, load64(p));
  auto tail = static_cast<uint32_t>(a);
  for (; bytes > 0; ++p, --bytes) tail = _mm_crc32_u8(tail, *p);
  return ~tail;
}
bool has_crc32c_folding() { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq"); }

// Folds 256 bytes at a time in four registers (16 lanes of 128 bits). Each lane is multiplied by x^2048, modulo the
// polynomial but unreduced, and xored with the data 256 bytes ahead. The remainder has the CRC of everything before.
// The product of two reflected factors is off by one power. Gopal et al., "Fast CRC Computation Using PCLMULQDQ", 2009.
__attribute__((target("avx512f,vpclmulqdq,sse4.2"))) uint32_t crc32c_folding(const void* data, size_t bytes,
                                                                             uint32_t crc) {
  constexpr size_t kTurn = 256;
  if (bytes < 2 * kTurn) return crc32c_hardware(data, bytes, crc);
  const auto* p = static_cast<const unsigned char*>(data);
  constexpr auto kFirst = static_cast<int64_t>(static_cast<uint64_t>(power(8 * kTurn + 63)) << 32),
                 kSecond = static_cast<int64_t>(static_cast<uint64_t>(power(8 * kTurn - 1)) << 32);
  const __m512i by = _mm512_set4_epi64(kSecond, kFirst, kSecond, kFirst);
  __m512i x[4];
  for (size_t k = 0; k < 4; ++k) x[k] = _mm512_loadu_si512(p + 64 * k);
  x[0] = _mm512_xor_si512(x[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(~crc))));
  for (p += kTurn, bytes -= kTurn; bytes >= kTurn; p += kTurn, bytes -= kTurn)
    for (size_t k = 0; k < 4; ++k) {
      const __m512i first = _mm512_clmulepi64_epi128(x[k], by, 0x00), second = _mm512_clmulepi64_epi128(x[k], by, 0x11);
      x[k] = _mm512_ternarylogic_epi64(first, second, _mm512_loadu_si512(p + 64 * k), 0x96);
    }
  alignas(64) unsigned char rest[kTurn];
  for (size_t k = 0; k < 4; ++k) _mm512_store_si512(rest + 64 * k, x[k]);
  return crc32c_hardware(p, bytes, crc32c_hardware(rest, kTurn, ~0u));
}
#else
bool has_crc32c_instruction() { return false; }
bool has_crc32c_folding() { return false; }
uint32_t crc32c_folding(const void* data, size_t bytes, uint32_t crc) { return crc32c_table(data, bytes, crc); }
uint32_t crc32c_hardware(const void* data, size_t bytes, uint32_t crc) { return crc32c_table(data, bytes, crc); }
#endif

uint32_t crc32c(const void* data, size_t bytes, uint32_t crc) {
  static const auto fastest = has_crc32c_folding()       ? crc32c_folding
                              : has_crc32c_instruction() ? crc32c_hardware
                                                         : crc32c_table;
  return fastest(data, bytes, crc);
}

uint32_t crc32c_join(uint32_t first, uint32_t second, size_t second_bytes) {
  for (size_t k = 0; second_bytes != 0; ++k, second_bytes >>= 1)
    if (second_bytes & 1) first = multiply(kPowers[k], first);
  return first ^ second;
}

}  // namespace gt
