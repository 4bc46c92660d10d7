// Tensor cores of the emulated device: what PTX documents of ldmatrix and mma.m16n8k16, lane by lane. Part of
// emulate.h. Sums are fma chains in ascending k, which the hardware's are not.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace gt::emulated {

inline int lane() { return static_cast<int>(threadIdx.x % 32); }

inline void load_matrices(uint32_t (&out)[4], const void* row, bool turned) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) die("a row of a matrix is not 16-byte aligned");
  const uint64_t* rows = exchange(reinterpret_cast<uint64_t>(row));
  const int g = lane() / 4, t = lane() % 4;
  for (int m = 0; m < 4; ++m) {
    uint16_t both[2];
    for (int i = 0; i < 2; ++i)
      both[i] = turned ? reinterpret_cast<const uint16_t*>(rows[8 * m + 2 * t + i])[g]
                       : reinterpret_cast<const uint16_t*>(rows[8 * m + g])[2 * t + i];
    std::memcpy(&out[m], both, sizeof both);
  }
}

// Registers of a pair, of all lanes.
inline std::array<uint64_t, 32> gather(uint32_t low, uint32_t high) {
  std::array<uint64_t, 32> out;
  std::copy_n(exchange(uint64_t{high} << 32 | low), 32, out.begin());
  return out;
}

template <class T>
float half_of(uint64_t registers, int index) {
  const auto bits = static_cast<uint16_t>(registers >> 16 * index);
  T value;
  std::memcpy(static_cast<void*>(&value), &bits, sizeof bits);
  return static_cast<float>(value);
}

template <class T>
void multiply_add(float* c, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const auto front = gather(a[0], a[1]), back = gather(a[2], a[3]), right = gather(b0, b1);
  const int g = lane() / 4, t = lane() % 4;
  for (int i = 0; i < 4; ++i) {
    const int column = 2 * t + i % 2;
    for (int k = 0; k < 16; ++k) {
      const auto& left = k < 8 ? front : back;
      c[i] = std::fma(half_of<T>(left[static_cast<size_t>(4 * g + k % 8 / 2)], i / 2 * 2 + k % 2),
                      half_of<T>(right[static_cast<size_t>(4 * column + k % 8 / 2)], k / 8 * 2 + k % 2), c[i]);
    }
  }
}

}  // namespace gt::emulated
