#include "launch/verify/logical.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gt {
namespace {
constexpr double kInfinite = std::numeric_limits<double>::infinity();
}

TensorDistance distance(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return {kInfinite, kInfinite, 0, 0};
  double diff = 0, aa = 0, bb = 0, ab = 0, most = 0;
  float largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = a[i], y = b[i];
    diff += (x - y) * (x - y);
    aa += x * x;
    bb += y * y;
    ab += x * y;
    most = std::max(most, std::abs(x - y));
    largest = std::max(largest, std::abs(b[i]));
  }
  constexpr double kTiny = 1e-30;
  const double relative = std::sqrt(diff) / std::max(std::sqrt(bb), kTiny);
  if (!std::isfinite(relative)) return {kInfinite, kInfinite, 0, 0};
  const double unit = static_cast<double>(std::nextafter(largest, std::numeric_limits<float>::max()) - largest);
  if (diff == 0) return {};
  return {relative, most / unit, ab / std::max(std::sqrt(aa) * std::sqrt(bb), kTiny),
          std::sqrt(aa) / std::max(std::sqrt(bb), kTiny)};
}

double relative_error(const std::vector<float>& a, const std::vector<float>& b) { return distance(a, b).relative; }

std::pair<std::string, double> worst_error(const Logical& a, const Logical& b) {
  std::pair<std::string, double> worst{"", 0};
  for (const Logical* side : {&a, &b})
    for (const auto& [name, unused] : *side) {
      const bool both = a.count(name) && b.count(name);
      const double e = both ? relative_error(a.at(name), b.at(name)) : kInfinite;
      if (e > worst.second) worst = {name, e};
    }
  return worst;
}

}  // namespace gt
