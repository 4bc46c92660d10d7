#include "kernels/core/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
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

#if defined(__x86_64__)
// The instruction takes 3 cycles but one can start each cycle: three streams of kLane bytes run side by side and are
// joined by moving a CRC over kLane zero bytes, which is linear: one table look-up for each of its four bytes.
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
#else
bool has_crc32c_instruction() { return false; }
uint32_t crc32c_hardware(const void* data, size_t bytes, uint32_t crc) { return crc32c_table(data, bytes, crc); }
#endif

uint32_t crc32c(const void* data, size_t bytes, uint32_t crc) {
  static const bool fast = has_crc32c_instruction();
  return fast ? crc32c_hardware(data, bytes, crc) : crc32c_table(data, bytes, crc);
}

}  // namespace gt
