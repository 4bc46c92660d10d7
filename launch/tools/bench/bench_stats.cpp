#include "launch/tools/bench/bench_stats.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "parallel/comm/host_values.h"

namespace gt {
namespace {

double at(const std::vector<double>& sorted, double share) {
  return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))];
}

}  // namespace

Spread spread_of(std::vector<double> v) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  if (v.empty()) return {kNan, kNan, kNan, kNan};
  std::sort(v.begin(), v.end());
  Spread s{at(v, 0.5), at(v, 0.1), at(v, 0.9), 0};
  for (double& x : v) x = std::abs(x - s.median);
  std::sort(v.begin(), v.end());
  s.mad = at(v, 0.5);
  return s;
}

double quantile(std::vector<double> v, double share) {
  std::sort(v.begin(), v.end());
  const double position = share * static_cast<double>(v.size() - 1), low = std::floor(position);
  const auto i = static_cast<size_t>(low);
  return i + 1 < v.size() ? v[i] + (position - low) * (v[i + 1] - v[i]) : v[i];
}

double slowest(ProcessGroup& world, double seconds) { return max_over(world, seconds); }

double mean_of(ProcessGroup& world, double seconds, bool counts) {
  const auto [sum, ranks] = sum_over(world, std::array{counts ? seconds : 0., counts ? 1. : 0.});
  return ranks > 0 ? sum / ranks : 0;
}

}  // namespace gt
