// The anomaly check of a step: identical decision on every device and on the host.
#pragma once
#include <cstdint>

namespace gt {

// Limits of the anomaly check, f64 [kNumLimits]. Loss or norm is anomalous when it is not finite, or when (value -
// middle) / spread > kMaxDeviations: -inf: always, +inf: never.
enum StepLimit : int { kLossMedian, kLossDeviation, kNormMedian, kNormDeviation, kMaxDeviations, kNumLimits };

// The objective from losses [sums, n], n microbatches each: for every sum its weight times its mean, in order. shares
// [sums, 2]: weight and divisor of a sum (at least 1 is used). Divisor 0: the mean over microbatches of their means,
// whose divisors are counts [n].
constexpr double mean_loss(const double* losses, int64_t sums, int64_t n, const double* shares, const double* counts) {
  const auto at_least_1 = [](double x) { return x < 1 ? 1 : x; };
  double objective = 0;
  for (int64_t s = 0; s < sums; ++s, losses += n, shares += 2) {
    const bool means = shares[1] == 0;
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += means ? losses[i] / at_least_1(counts[i]) : losses[i];
    objective += shares[0] * (sum / (means ? static_cast<double>(n) : at_least_1(shares[1])));
  }
  return objective;
}

constexpr double spreads_above(double value, double middle, double spread) { return (value - middle) / spread; }

constexpr bool is_anomalous_step(double loss, double norm, const double* limits) {
  const auto bad = [&](double x, StepLimit middle, StepLimit spread) {
    const bool finite = x - x == 0;
    return !finite || spreads_above(x, limits[middle], limits[spread]) > limits[kMaxDeviations];
  };
  return bad(loss, kLossMedian, kLossDeviation) || bad(norm, kNormMedian, kNormDeviation);
}

}  // namespace gt
