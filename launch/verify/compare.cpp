#include "launch/verify/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gt {

double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double diff = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    diff += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  const double e = std::sqrt(diff) / std::max(std::sqrt(norm), 1e-30);
  return std::isfinite(e) ? e : std::numeric_limits<double>::infinity();
}

std::pair<std::string, double> worst_error(const Logical& a, const Logical& b) {
  std::pair<std::string, double> worst{"", 0};
  for (const Logical* side : {&a, &b})
    for (const auto& [name, unused] : *side) {
      const bool both = a.count(name) && b.count(name);
      const double e = both ? relative_error(a.at(name), b.at(name)) : std::numeric_limits<double>::infinity();
      if (e > worst.second) worst = {name, e};
    }
  return worst;
}

}  // namespace gt
