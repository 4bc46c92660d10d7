// The tile instructions that pair_gemm_amx.cpp uses, emulated as Intel describes them ("Architecture Instruction Set
// Extensions Programming Reference", TDPBF16PS ff.): so its use of tiles is tested on every processor. Accesses beyond
// the configured rows and bytes do not happen, and a product of tiles whose shapes do not fit throws, as the processor
// faults.
#pragma once
#include <immintrin.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/core/check.h"

namespace gt::test {

class EmulatedTiles {
 public:
  void configure(const void* memory) {
    std::array<uint8_t, 64> bytes;
    std::memcpy(bytes.data(), memory, bytes.size());
    GT_CHECK(bytes[0] == 1 && bytes[1] == 0, "tile palette ", int{bytes[0]});
    for (size_t t = 0; t < tiles_.size(); ++t) {
      Tile& tile = tiles_[t];
      tile = {};
      tile.rows = bytes[48 + t];
      tile.bytes = static_cast<int>(bytes[16 + 2 * t] | bytes[17 + 2 * t] << 8);
      GT_CHECK(tile.rows >= 1 && tile.rows <= 16 && tile.bytes >= 1 && tile.bytes <= 64, "tile ", t, ": ", tile.rows,
               " rows of ", tile.bytes, " bytes");
    }
    configured_ = true;
    ++configurations_;
  }
  void release() { configured_ = false; }
  bool configured() const { return configured_; }
  int configurations() const { return configurations_; }
  void zero(int t) {
    for (auto& row : of(t).data) row = {};
  }
  void load(int t, const void* from, int64_t stride) {
    zero(t);
    for (int r = 0; r < of(t).rows; ++r)
      std::memcpy(of(t).data[static_cast<size_t>(r)].data(), static_cast<const std::byte*>(from) + r * stride,
                  static_cast<size_t>(of(t).bytes));
  }
  void store(int t, void* to, int64_t stride) {
    for (int r = 0; r < of(t).rows; ++r)
      std::memcpy(static_cast<std::byte*>(to) + r * stride, of(t).data[static_cast<size_t>(r)].data(),
                  static_cast<size_t>(of(t).bytes));
  }
  // sums += a b: odd and even elements are summed apart over the tile's pairs, then both are added.
  void multiply_bf16(int sums, int a, int b) {
    Tile &c = of(sums), &x = of(a), &y = of(b);
    GT_CHECK(c.rows == x.rows && c.bytes == y.bytes && x.bytes % 4 == 0 && x.bytes / 4 == y.rows, "tiles ", sums, ", ",
             a, ", ", b, " do not fit");
    for (size_t r = 0; r < static_cast<size_t>(c.rows); ++r)
      for (size_t n = 0; n < static_cast<size_t>(c.bytes) / 4; ++n) {
        float even = 0, odd = 0;
        for (size_t k = 0; k < static_cast<size_t>(y.rows); ++k) {
          even = std::fmaf(low(x.data[r][k]), low(y.data[k][n]), even);
          odd = std::fmaf(high(x.data[r][k]), high(y.data[k][n]), odd);
        }
        c.data[r][n] = std::bit_cast<uint32_t>(std::bit_cast<float>(c.data[r][n]) + (even + odd));
      }
  }

 private:
  struct Tile {
    int rows = 0, bytes = 0;
    std::array<std::array<uint32_t, 16>, 16> data = {};
  };
  static float low(uint32_t pair) { return std::bit_cast<float>(pair << 16); }
  static float high(uint32_t pair) { return std::bit_cast<float>(pair & 0xFFFF0000u); }
  Tile& of(int t) {
    GT_CHECK(configured_, "tiles are not configured");
    return tiles_[static_cast<size_t>(t)];
  }
  std::array<Tile, 8> tiles_;
  bool configured_ = false;
  int configurations_ = 0;
};

inline EmulatedTiles& emulated_tiles() {
  thread_local EmulatedTiles tiles;
  return tiles;
}

}  // namespace gt::test

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(memory) gt::test::emulated_tiles().configure(memory)
#define _tile_release() gt::test::emulated_tiles().release()
#define _tile_zero(t) gt::test::emulated_tiles().zero(t)
#define _tile_loadd(t, from, stride) gt::test::emulated_tiles().load(t, from, stride)
#define _tile_stored(t, to, stride) gt::test::emulated_tiles().store(t, to, stride)
#define _tile_dpbf16ps(sums, a, b) gt::test::emulated_tiles().multiply_bf16(sums, a, b)
