// Cases of reductions, clipping and the anomaly check.
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/cases/op_cases.h"

namespace gt::test {
namespace {

constexpr double kUnwritten = std::numeric_limits<double>::quiet_NaN();

CaseOf<Sum>& sum_case(OpCases& to, int64_t count, std::string what, bool accumulate = false, Fill fill = normal(1, 0.2),
                      DType t = DType::kF32) {
  auto& c = add_case<Sum>(to, cat("[", count, "]", what, suffix(t)));
  c.args.accumulate = accumulate;
  c.in(&Sum::x, "x", {count}, std::move(fill), t).result(&Sum::out, "out", {1}, accumulate, DType::kF64);
  c.tolerance = 1e-12;  // every element widened to f64
  c.flops = static_cast<double>(count);
  return c;
}

void add_sums(OpCases& to) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const int64_t count : {0, 1, 7, 33, 129, 5000, 100003}) {
    sum_case(to, count, "");
    sum_case(to, count, " accumulate", true);
  }
  sum_case(to, 5000, " unaligned").skew = 1;
  for (const DType t : k16BitDtypes) {
    for (const int64_t count : {7, 5000, 100003}) sum_case(to, count, "", false, normal(1, 0.2), t);
    sum_case(to, 5000, " unaligned", true, normal(1, 0.2), t).skew = 1;
  }
  sum_case(to, 129, " with nan", false, values({1, 2, nan, 3})).non_finite = true;
  sum_case(to, 129, " with inf", true, values({1, 2, inf, 3})).non_finite = true;
  sum_case(to, 129, " beyond f32", false, values({3e38, 3e38, 2e38}));
  sum_case(to, 1 << 24, "").big = true;
}

// Segments, two per group except the last; entry 0 and the one after the last group are not the op's.
CaseOf<SumSquares>& squares_case(OpCases& to, const std::vector<int64_t>& counts, const std::string& what,
                                 DType t = DType::kF32, Fill fill = normal(1, 0.2)) {
  std::string sizes;
  for (const int64_t n : counts) sizes += cat(sizes.empty() ? "[" : " ", n);
  auto& c = add_case<SumSquares>(to, cat(sizes, "]", what, suffix(t)));
  c.args.table.grad = t;
  for (size_t k = 0; k < counts.size(); ++k) {
    if (counts[k] == 0) continue;
    c.segment({.count = counts[k], .group = static_cast<int32_t>(1 + k / 2), .counted = k % 4 == 2 ? 0 : 1});
    c.has(CaseOf<SumSquares>::kGrad, Access::kIn, fill, t);
    c.flops += 2 * static_cast<double>(counts[k]);
  }
  c.inout(&SumSquares::out, "out", {static_cast<int64_t>(2 + (counts.size() + 1) / 2)}, normal(), DType::kF64);
  c.tolerance = 1e-12;  // every element widened to f64
  return c;
}

void add_sums_of_squares(OpCases& to) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const DType t : kGradients) {
    for (const int64_t count : {0, 1, 7, 33, 129, 5000, 100003}) squares_case(to, {count}, "", t);
    squares_case(to, {40000, 1, 768, 100003, 32768, 5}, "", t);
    squares_case(to, {5000, 33, 9}, " unaligned", t).skew = 1;
    squares_case(to, {1 << 24, 768, 1 << 20}, "", t).big = true;
  }
  squares_case(to, {129, 7}, " with nan", DType::kF32, values({1, 2, nan, 3})).non_finite = true;
  squares_case(to, {129, 7}, " with inf", DType::kF32, values({1, 2, inf, 3})).non_finite = true;
  squares_case(to, {129}, " beyond f32", DType::kF32, values({3e38, 3e38, 2e38}));
}

void add_clip(OpCases& to, std::string name, std::vector<double> squares, float clip, float denominator,
              double slack = 1e-6, std::vector<double> guard = {}) {
  auto& c = add_case<ClipFactor>(to, std::move(name));
  c.args.clip = clip, c.args.denominator = denominator, c.args.slack = slack;
  std::vector<double> before(kNumScalars, 0.7);  // values the op must not change, and NaN
  before[kGradMultiplier] = before[kSkip] = kUnwritten;
  const auto count = static_cast<int64_t>(squares.size());
  for (const double s : squares) c.non_finite |= s > 1e300;
  c.in(&ClipFactor::norm_squares, "norm_squares", {count}, values(std::move(squares)), DType::kF64);
  c.inout(&ClipFactor::scalars, "scalars", {kNumScalars}, values(std::move(before)));
  c.out(&ClipFactor::norm, "norm", {1});
  const auto guards = static_cast<int64_t>(guard.size());
  if (guards > 0) c.in(&ClipFactor::guard, "guard", {guards}, values(std::move(guard)), DType::kF64);
}

// Three microbatches with a mean loss of 2 per target, 4 targets each; a norm of 1. most: spreads of 0.25 above 1.
void add_check_step(OpCases& to, std::string name, double most, double norm = 1, double first_loss = 8, double skip = 0,
                    bool counted = false, double pairs = 0, double weight = 1) {
  auto& c = add_case<CheckStep>(to, std::move(name));
  std::vector<double> before(kNumScalars, 0.7);
  before[kSkip] = skip, before[kAnomalous] = 0;
  c.in(&CheckStep::losses, "losses", {pairs > 0 ? 6 : 3}, values({first_loss, 8, 8}), DType::kF64);
  const double targets = counted ? 0 : 12;
  c.in(&CheckStep::shares, "shares", {pairs > 0 ? 2 : 1, 2}, values({1, targets, weight, pairs}), DType::kF64);
  if (counted) c.in(&CheckStep::counts, "counts", {3}, values({4, 4, 0}), DType::kF64);
  c.in(&CheckStep::norm, "norm", {1}, values({norm}));
  c.in(&CheckStep::limits, "limits", {kNumLimits}, values({1, 0.25, 1, 0.25, most}), DType::kF64);
  c.inout(&CheckStep::scalars, "scalars", {kNumScalars}, values(std::move(before)));
  c.non_finite = true;
}

void add_check_steps(OpCases& to) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  add_check_step(to, "at the limit", 4);
  add_check_step(to, "the loss is far", 3.9);
  add_check_step(to, "the norm is far", 4, 2.1);
  add_check_step(to, "far, and skipped already", 3.9, 1, 8, 1);
  add_check_step(to, "no limit", inf, 1e30);
  add_check_step(to, "everything is left out", -inf);
  add_check_step(to, "no limit, the loss is NaN", inf, 1, nan);
  add_check_step(to, "no limit, the loss is infinite", inf, 1, -inf);
  add_check_step(to, "no limit, the norm is infinite", inf, inf);
  add_check_step(to, "a mean of means, at the limit", 12, 1, 8, 0, true);  // (2 + 2 + 8) / 3
  add_check_step(to, "a mean of means, far", 11.9, 1, 8, 0, true);
  add_check_step(to, "tokens and pairs, at the limit", 20, 1, 8, 0, false, 6);  // 24 / 12 + 24 / 6
  add_check_step(to, "tokens and pairs, far", 19.9, 1, 8, 0, false, 6);
  add_check_step(to, "a loss of another weight, at the limit", 12, 1, 8, 0, false, 6, 0.5);  // 24 / 12 + 24 / 6 / 2
  add_check_step(to, "a loss of another weight, far", 11.9, 1, 8, 0, false, 6, 0.5);
  add_check_step(to, "a mean of means and pairs, at the limit", 28, 1, 8, 0, true, 6);  // (2 + 2 + 8) / 3 + 24 / 6
  add_check_step(to, "a mean of means and pairs, far", 27.9, 1, 8, 0, true, 6);
  auto& timed = add_case<CheckStep>(to, "128 microbatches");
  timed.in(&CheckStep::losses, "losses", {128}, positive(), DType::kF64);
  timed.in(&CheckStep::shares, "shares", {1, 2}, positive(), DType::kF64);
  timed.in(&CheckStep::norm, "norm", {1}, positive());
  timed.in(&CheckStep::limits, "limits", {kNumLimits}, positive(), DType::kF64);
  timed.inout(&CheckStep::scalars, "scalars", {kNumScalars}, positive()).big = true;
}

}  // namespace

void add_step_cases(OpCases& to) {
  add_sums(to);
  add_sums_of_squares(to);
  const double inf = std::numeric_limits<double>::infinity();
  add_clip(to, "one unit, clipped", {25}, 1, 1);
  add_clip(to, "three units, clipped", {25, 7.5, 1e-3}, 1, 1);
  add_clip(to, "clipped without slack", {25, 7.5}, 1e-5f, 3, 0);
  add_clip(to, "zero norm without slack", {0}, 1, 1, 0);
  add_clip(to, "below the limit", {0.25, 0.11}, 1, 1);
  add_clip(to, "no clipping", {25, 7.5}, 0, 1);
  add_clip(to, "with a denominator", {2.5e9, 7e8}, 0.5f, 1024);
  add_clip(to, "no clipping, a denominator", {2.5e9, 7e8}, 0, 1024);
  add_clip(to, "zero norm", {0}, 1, 1);
  add_clip(to, "infinite norm", {25, inf}, 1, 1);
  add_clip(to, "infinite norm, no clipping", {inf}, 0, 8);
  add_clip(to, "guarded", {25, 7.5}, 1, 1, 1e-6, {1e300, 0, 7});
  add_clip(to, "a guard is infinite", {25, 7.5}, 1, 1, 1e-6, {0, inf});
  add_clip(to, "a guard is NaN", {25, 7.5}, 1, 1, 1e-6, {std::numeric_limits<double>::quiet_NaN()});
  auto& timed = add_case<ClipFactor>(to, "64 units");
  timed.in(&ClipFactor::norm_squares, "norm_squares", {64}, positive(), DType::kF64);
  timed.inout(&ClipFactor::scalars, "scalars", {kNumScalars}, positive()).out(&ClipFactor::norm, "norm", {1});
  timed.big = true;
  add_check_steps(to);
}

}  // namespace gt::test
