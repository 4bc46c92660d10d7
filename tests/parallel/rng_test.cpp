// Counter-based randomness against fixed values; it makes initial weights and masks identical under every layout.
#include "kernels/core/rng.h"

#include <cmath>
#include <string>
#include <vector>

#include "tests/support/test.h"

using namespace gt;

TEST_CASE("Philox4x32-10 and the stream key return the published words") {
  CHECK(philox(0, 0, 0) == std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  // Salmon et al., Random123 known answers: all ones, and the digits of pi.
  CHECK(philox(~0ull, ~0ull, ~0ull) == std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e) ==
        std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
  CHECK(stream_key(1234, "dropout/layers.0.attn.out") == 0xd348097beca72b56);
}

TEST_CASE("dropout keeps the specified elements") {
  const uint64_t key = stream_key(1234, "dropout/layers.0.attn.out");
  std::string keeps;
  for (uint64_t e = 0; e < 16; ++e) keeps += philox(key, e / 4, 5)[e % 4] >= 0x40000000u ? '1' : '0';  // P = 0.25
  CHECK(keeps == "0111100110101111");
}

TEST_CASE("initial normals are the fixed numbers, for any start and any chunk size") {
  const uint64_t key = stream_key(1234, "init/layers.0.attn.qkv.weight");
  const double expected[] = {-0.591299335, -0.206624591, -0.125607202, 0.182982499};
  for (uint64_t e = 0; e < 4; ++e) CHECK(philox_normal(key, e) == Approx(expected[e]).margin(5e-10));
  std::vector<float> whole(101);
  philox_normals(key, 0, 101, 0.02, whole.data());
  for (int64_t first : {0, 1, 2, 7, 100})
    for (int64_t count : {0, 1, 2, 5, 101}) {
      if (first + count > 101) continue;
      std::vector<float> piece(static_cast<size_t>(count) + 1, 42.f);
      philox_normals(key, static_cast<uint64_t>(first), count, 0.02, piece.data());
      for (int64_t i = 0; i < count; ++i) CHECK(piece[static_cast<size_t>(i)] == whole[static_cast<size_t>(first + i)]);
      CHECK(piece.back() == 42.f);  // not one more
    }
}

TEST_CASE("normals have the moments of a normal distribution") {
  const uint64_t key = stream_key(7, "init/test");
  double sum = 0, squares = 0, fourth = 0;
  constexpr int kCount = 100000;
  for (uint64_t e = 0; e < kCount; ++e) {
    const double x = philox_normal(key, e);
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  CHECK(std::abs(sum / kCount) < 4 / std::sqrt(double{kCount}));
  CHECK(squares / kCount == Approx(1).margin(4 * std::sqrt(2.0 / kCount)));
  CHECK(fourth / kCount == Approx(3).margin(4 * std::sqrt(96.0 / kCount)));
}
