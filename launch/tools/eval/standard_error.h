// Standard errors of evaluations.
#pragma once
#include <cmath>
#include <limits>
#include <span>

namespace gt {

// Standard error of sum(x) / sum(n) over independent groups of measurements, linearized (Cochran 1977, Sampling
// Techniques, 6.4): groups with n 0 do not count. NaN with fewer than two groups. Of single measurements, n 1 each, it
// is the sample's standard deviation over the square root of its size.
inline double ratio_standard_error(std::span<const double> x, std::span<const double> n) {
  double of_x = 0, of_n = 0, groups = 0, squares = 0;
  for (size_t k = 0; k < x.size(); ++k) of_x += x[k], of_n += n[k], groups += n[k] > 0;
  if (groups < 2) return std::numeric_limits<double>::quiet_NaN();
  for (size_t k = 0; k < x.size(); ++k)
    if (const double d = x[k] - of_x / of_n * n[k]; n[k] > 0) squares += d * d;
  return std::sqrt(groups / (groups - 1) * squares) / of_n;
}

}  // namespace gt
