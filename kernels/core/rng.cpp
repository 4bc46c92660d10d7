#include "kernels/core/rng.h"

#include <cmath>

namespace gt {

double philox_normal(uint64_t key, uint64_t e) {
  const auto x = philox(key, e / 2, 0);
  const uint64_t a = (uint64_t{x[0]} << 32 | x[1]) >> 11, b = (uint64_t{x[2]} << 32 | x[3]) >> 11;
  const double u1 = (static_cast<double>(a) + 0.5) * 0x1p-53, u2 = static_cast<double>(b) * 0x1p-53;
  const double r = std::sqrt(-2 * std::log(u1)), angle = 2 * M_PI * u2;
  return e % 2 == 0 ? r * std::cos(angle) : r * std::sin(angle);
}

}  // namespace gt
