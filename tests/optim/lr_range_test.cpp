// Evaluation of a learning-rate range test.
#include "optim/lr_range.h"

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/test.h"

using namespace gt;

namespace {

// Falls until `turn` (a fraction of the run), then rises; lr grows from 1e-4 by 1e-4 per step.
std::vector<RangePoint> curve(int steps, double turn, double noise = 0) {
  std::vector<RangePoint> out;
  for (int i = 0; i < steps; ++i) {
    const double x = static_cast<double>(i) / steps, over = std::max(0.0, x - turn);
    out.push_back({1e-4 * (i + 1), 5 - 3 * std::min(x, turn) + 60 * over * over + (i % 2 ? noise : -noise)});
  }
  return out;
}

}  // namespace

TEST_CASE("the largest stable rate is where the smoothed loss is lowest, the suggested peak half of it") {
  for (const double noise : {0.0, 0.05}) {
    const RangeTestResult v = evaluate_range_test(curve(200, 0.6, noise));
    CHECK(v.enough);
    CHECK(v.diverged);
    CHECK(v.largest_stable > 0.6 * 200e-4);
    CHECK(v.largest_stable < 0.75 * 200e-4);
    CHECK(v.suggested_peak == Approx(v.largest_stable / 2));
    CHECK(v.lowest_loss == Approx(3.2).margin(0.2));
  }
}

TEST_CASE("a range test without a rise reports no divergence, one with too few points no result") {
  const RangeTestResult v = evaluate_range_test(curve(200, 1));
  CHECK(v.enough);
  CHECK_FALSE(v.diverged);
  CHECK(v.largest_stable == Approx(200e-4));
  CHECK_FALSE(evaluate_range_test(curve(5, 1)).enough);
  CHECK_FALSE(evaluate_range_test({}).enough);
  std::vector<RangePoint> rising;
  for (int i = 0; i < 50; ++i) rising.push_back({1e-3 * i, 5.0 + i});
  CHECK_FALSE(evaluate_range_test(rising).enough);
}

TEST_CASE("the test stops when the loss is not finite or far above its lowest, and not before") {
  auto c = curve(200, 0.5);
  CHECK_FALSE(has_diverged(std::span(c).first(110)));
  CHECK(has_diverged(c));
  c.resize(100);
  CHECK_FALSE(has_diverged(c));
  c.push_back({1, std::numeric_limits<double>::quiet_NaN()});
  CHECK(has_diverged(c));
  CHECK(evaluate_range_test(c).diverged);
}
