// Nearest valid numbers, for the suggestions in error messages.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace gt {

// Returns the sorted, deduplicated list as text: "2, 4, 8".
inline std::string list_of(std::vector<int64_t> v) {
  std::sort(v.begin(), v.end());
  v.erase(std::unique(v.begin(), v.end()), v.end());
  return fmt::format("{}", fmt::join(v, ", "));
}

// Returns the (at most six) elements of `legal` nearest to x.
inline std::vector<int64_t> nearest(std::vector<int64_t> legal, int64_t x) {
  std::sort(legal.begin(), legal.end(), [&](int64_t a, int64_t b) {
    const int64_t da = std::llabs(a - x), db = std::llabs(b - x);
    return da != db ? da < db : a < b;
  });
  if (legal.size() > 6) legal.resize(6);
  return legal;
}

template <class F>
std::vector<int64_t> divisors(int64_t n, F&& also) {
  std::vector<int64_t> out;
  for (int64_t d = 1; d * d <= n; ++d) {
    if (n % d) continue;
    if (also(d)) out.push_back(d);
    if (d != n / d && also(n / d)) out.push_back(n / d);
  }
  return out;
}

// Returns the multiples of m adjacent to x.
inline std::vector<int64_t> multiples(int64_t m, int64_t x) {
  const int64_t below = x / m * m;
  return below > 0 ? std::vector<int64_t>{below, below + m} : std::vector<int64_t>{below + m};
}

}  // namespace gt
