// The anomaly check of a step: identical decision on every device and on the host.
#pragma once
#include <cstdint>

namespace gt {

// Limits of the anomaly check, f64 [kNumLimits]. Loss or norm is anomalous when it is not finite, or when (value -
// middle) / spread > kMaxDeviations: -inf: always, +inf: never.
enum StepLimit : int {
  kTargets,  // number of targets that carry loss: divisor of the summed loss
  kLossMedian,
  kLossDeviation,
  kNormMedian,
  kNormDeviation,
  kMaxDeviations,
  kPairs,  // > 0: the second half of the losses are of sentence pairs; their divisor
  kNumLimits
};

// Mean over all targets; with counts (not null), mean over n microbatches of their means. Sums in order; divisors are
// at least 1. pairs > 0: mean over the targets of the first half of the losses plus mean over the pairs of the second;
// counts is null.
constexpr double mean_loss(const double* losses, const double* counts, int64_t n, double targets, double pairs = 0) {
  const auto at_least_1 = [](double x) { return x < 1 ? 1 : x; };
  const int64_t of_tokens = pairs > 0 ? n / 2 : n;
  double loss = 0, pair_loss = 0;
  for (int64_t i = 0; i < of_tokens; ++i) loss += counts == nullptr ? losses[i] : losses[i] / at_least_1(counts[i]);
  for (int64_t i = of_tokens; i < n; ++i) pair_loss += losses[i];
  loss /= counts == nullptr ? at_least_1(targets) : static_cast<double>(n);
  return pairs > 0 ? loss + pair_loss / at_least_1(pairs) : loss;
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
