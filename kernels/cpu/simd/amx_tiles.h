// Configuration of AMX tiles, shared by the kernels that use them.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/simd/simd.h"

namespace gt::cpu {
namespace {

constexpr int64_t kTile = 16;  // rows; pairs of bf16 or f32 sums of a row

// Registers 0 to 3 are sums, 4 and 5 of a, 6 and 7 of b. The layout is the instruction's.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Registers for products of `rows` x `pairs` by `pairs` x `columns`, until release_tiles().
inline void configure_tiles(int64_t rows, int64_t pairs, int64_t columns) {
  const int64_t shape = rows << 16 | pairs << 8 | columns;
  TileUse& use = tile_use();
  if (use.shape == shape) return;
  use.shape = shape, use.release = [] { _tile_release(); };
  TileConfig c;
  for (int t = 0; t < 8; ++t) {
    c.rows[t] = static_cast<uint8_t>(t < 6 ? rows : pairs);
    c.row_bytes[t] = static_cast<uint16_t>(4 * (t == 4 || t == 5 ? pairs : columns));
  }
  asm volatile("" : "+m"(c));  // GCC's header declares a read of eight bytes; the instruction reads all
  _tile_loadconfig(&c);
}

// The end of a product: other users of tiles may follow, except within HeldTiles.
inline void release_tiles() {
  if (tile_use().holders == 0) tile_use().end();
}

}  // namespace
}  // namespace gt::cpu
