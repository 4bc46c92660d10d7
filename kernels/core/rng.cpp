#include "kernels/core/rng.h"

#include <cmath>

namespace gt {
namespace {

struct Pair {
  double even, odd;
};

Pair normal_pair(uint64_t key, uint64_t counter) {
  const auto x = philox(key, counter, 0);
  const uint64_t a = (uint64_t{x[0]} << 32 | x[1]) >> 11, b = (uint64_t{x[2]} << 32 | x[3]) >> 11;
  const double u1 = (static_cast<double>(a) + 0.5) * 0x1p-53, u2 = static_cast<double>(b) * 0x1p-53;
  const double r = std::sqrt(-2 * std::log(u1)), angle = 2 * M_PI * u2;
  return {r * std::cos(angle), r * std::sin(angle)};
}

}  // namespace

double philox_normal(uint64_t key, uint64_t e) {
  const Pair p = normal_pair(key, e / 2);
  return e % 2 == 0 ? p.even : p.odd;
}

void philox_normals(uint64_t key, uint64_t first, int64_t count, double stddev, float* out) {
  int64_t i = 0;
  if (first % 2 == 1 && count > 0) out[i++] = static_cast<float>(philox_normal(key, first) * stddev);
  for (; i + 1 < count; i += 2) {
    const Pair p = normal_pair(key, (first + static_cast<uint64_t>(i)) / 2);
    out[i] = static_cast<float>(p.even * stddev);
    out[i + 1] = static_cast<float>(p.odd * stddev);
  }
  if (i < count) out[i] = static_cast<float>(philox_normal(key, first + static_cast<uint64_t>(i)) * stddev);
}

}  // namespace gt
