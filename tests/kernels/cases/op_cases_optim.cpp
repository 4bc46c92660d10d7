// Cases of the optimizer steps.
#include <string>
#include <vector>

#include "tests/kernels/cases/op_cases.h"

namespace gt::test {
namespace {

struct Step {
  bool skip = false;
  DType value = DType::kF32;
  bool with_value = true;
  DType master = DType::kF32;  // if 16-bit: without a separate value tensor
  DType grad = DType::kF32;
};

// A learning rate so large that an error of the update appears at the same size in the master. Multiplier 0.5.
Fill scalar_values(bool skip) {
  std::vector<double> v(kNumScalars, 1.0);
  v[kLr] = 0.5, v[kBeta1] = 0.9, v[kBeta2] = 0.95, v[kBiasCorrection1] = 0.271, v[kBiasCorrection2] = 0.1855;
  v[kGradMultiplier] = 0.5, v[kSkip] = skip ? 1 : 0, v[kGradCoefficient] = 0.7;
  return values(v);
}

std::string text(const Step& s) {
  return cat(s.skip ? " skipped" : "", s.with_value ? " value " : "", s.with_value ? name_of(s.value) : "") +
         (s.master == DType::kF32 ? "" : cat(" master ", name_of(s.master))) + grad_suffix(s.grad);
}

using Counts = std::vector<int64_t>;  // elements of each segment; 0: none

std::string text(const Counts& counts) {
  std::string out;
  for (const int64_t n : counts) out += cat(out.empty() ? "[" : " ", n);
  return out + "]";
}

// Segments under one rule. Some of several have no weight decay or no value beside the master, as norms and biases of a
// 16-bit model; groups do not begin at 0.
template <class A>
CaseOf<A>& step_case(OpCases& to, const Counts& counts, const Step& s, const std::string& what, int moments,
                     float decay = 0.1f, const Fill& first = normal(0.3)) {
  using C = CaseOf<A>;
  auto& c = add_case<A>(to, cat(text(counts), what, text(s)));
  c.in(&A::scalars, "scalars", {kNumScalars}, scalar_values(s.skip));
  c.args.table.master = s.master, c.args.table.grad = s.grad, c.args.table.value = s.value;
  int64_t total = 0;
  for (size_t k = 0; k < counts.size(); ++k) {
    if (counts[k] == 0) continue;
    const bool many = counts.size() > 1;
    c.segment({.count = counts[k],
               .group = static_cast<int32_t>(many ? 1 + k / 2 : 0),
               .weight_decay = many && k % 3 == 1 ? 0 : decay,
               .counted = k % 4 == 3 ? 0 : 1});
    c.has(C::kMaster, Access::kInOut, normal(), s.master).has(C::kGrad, Access::kIn, normal(3), s.grad);
    if (moments > 0) c.has(C::kM, Access::kInOut, first);
    if (moments > 1) c.has(C::kV, Access::kInOut, positive());
    if (s.with_value && k % 2 == 0) c.has(C::kValue, s.skip ? Access::kInOut : Access::kOut, normal(), s.value);
    total += counts[k];
  }
  c.tolerance = s.skip ? 0 : s.value == DType::kF32 ? unit_of(s.master) : 1e-3;
  c.flops = 14.0 * static_cast<double>(total);
  return c;
}

const Counts& many_segments() {  // more than a tile, a tile, less than a vector, more than the largest part of a tile
  static const Counts kCounts{70001, 32768, 3, 9000, 1, 768, 2304, 16390};
  return kCounts;
}

// Calls `add(counts, step)` for sizes and value dtypes; then cases for some sizes only.
template <class F>
void sweep_sizes(F add) {
  for (const int64_t count : {0, 1, 7, 33, 129, 70001}) {
    add({count}, Step{});
    add({count}, Step{.with_value = false});
    add({count}, Step{.value = DType::kBF16});
    add({count}, Step{.skip = true});
  }
  add(many_segments(), Step{});
  add(many_segments(), Step{.value = DType::kBF16, .grad = DType::kBF16});
  add(many_segments(), Step{.skip = true, .value = DType::kF16});
}
template <class F>
void bf16_gradients(F add) {
  for (const int64_t count : {1, 33, 9001}) add({count}, Step{.value = DType::kBF16, .grad = DType::kBF16});
  add({129}, Step{.with_value = false, .grad = DType::kBF16});
  add({9001}, Step{.with_value = false, .master = DType::kBF16, .grad = DType::kBF16});
  add({129}, Step{.with_value = false, .master = DType::kF16, .grad = DType::kBF16});
  add({129}, Step{.skip = true, .grad = DType::kBF16});
  add({1000}, Step{.value = DType::kF16, .grad = DType::kBF16}).skew = 1;
  add({1 << 22}, Step{.value = DType::kBF16, .grad = DType::kBF16}).big = true;
}
template <class F>
void odd_ones(F add) {
  add({129}, Step{.value = DType::kF16});
  add({129}, Step{.skip = true, .value = DType::kBF16});
  add({1000}, Step{.value = DType::kBF16}).skew = 1;
  add({1000, 40000, 33}, Step{.value = DType::kBF16}).skew = 1;
  for (const DType t : k16BitDtypes) {
    add({9001}, Step{.with_value = false, .master = t});
    add({129}, Step{.skip = true, .with_value = false, .master = t});
  }
  add({1 << 22}, Step{.value = DType::kBF16}).big = true;
}

void add_adamw(OpCases& to) {
  const auto one = [&](const Counts& counts, const Step& s, bool l2, float decay) -> auto& {
    auto& c = step_case<AdamW>(to, counts, s, cat(l2 ? " l2" : "", decay == 0 ? " no decay" : ""), 2, decay);
    c.args.adam_l2 = l2;
    return c;
  };
  for (const bool l2 : {false, true}) sweep_sizes([&](const Counts& n, const Step& s) { one(n, s, l2, 0.1f); });
  odd_ones([&](const Counts& n, const Step& s) -> auto& { return one(n, s, false, 0.1f); });
  bf16_gradients([&](const Counts& n, const Step& s) -> auto& { return one(n, s, false, 0.1f); });
  one({129}, {}, false, 0);
}

void add_sgd(OpCases& to) {
  const auto one = [&](const Counts& counts, const Step& s, bool momentum, bool nesterov) -> auto& {
    auto& c = step_case<Sgd>(to, counts, s, cat(momentum ? " momentum" : "", nesterov ? " nesterov" : ""), momentum);
    c.args.nesterov = nesterov;
    return c;
  };
  for (const bool nesterov : {false, true})
    sweep_sizes([&](const Counts& n, const Step& s) { one(n, s, true, nesterov); });
  odd_ones([&](const Counts& n, const Step& s) -> auto& { return one(n, s, true, false); });
  bf16_gradients([&](const Counts& n, const Step& s) -> auto& { return one(n, s, true, false); });
  for (const int64_t n : {0, 33, 5000}) one({n}, {}, false, false);
}

void add_lion(OpCases& to) {
  const auto one = [&](const Counts& counts, const Step& s) -> auto& { return step_case<Lion>(to, counts, s, "", 1); };
  sweep_sizes(one);
  odd_ones(one);
  bf16_gradients(one);
  using C = CaseOf<Lion>;
  auto& zero = add_case<Lion>(to, "[40] gradient and momentum zero");
  zero.in(&Lion::scalars, "scalars", {kNumScalars}, scalar_values(false)).segment({.count = 40});
  zero.has(C::kMaster, Access::kInOut, normal()).has(C::kGrad, Access::kIn, values({0, 0, 3, -3}));
  zero.has(C::kM, Access::kInOut, values({0, 0, 1, -1}));
}

void add_adagrad(OpCases& to) {
  const auto one = [&](const Counts& counts, const Step& s, float decay = 0.1f) -> auto& {
    auto& c = step_case<Adagrad>(to, counts, s, decay == 0 ? " no decay" : "", 1, decay, positive());
    c.args.eps = 1e-3f;
    return c;
  };
  const auto decayed = [&](const Counts& counts, const Step& s) -> auto& { return one(counts, s); };
  sweep_sizes(decayed);
  odd_ones(decayed);
  bf16_gradients(decayed);
  one({129}, {}, 0);
  using C = CaseOf<Adagrad>;
  auto& zero = add_case<Adagrad>(to, "[40] gradient and sum zero");
  zero.in(&Adagrad::scalars, "scalars", {kNumScalars}, scalar_values(false)).segment({.count = 40});
  zero.has(C::kMaster, Access::kInOut, normal()).has(C::kGrad, Access::kIn, values({0, 0, 3, -3}));
  zero.has(C::kM, Access::kInOut, values({0, 0, 1, 0}));
}

struct NamedRule {
  const char* name;
  LambRule rule;
  float decay = 0.1f;
};
const std::vector<NamedRule>& lamb_rules() {
  static const std::vector<NamedRule> kRules{
      {" paper", {}},
      {" clamped norm", {.max_norm = 0.5f}},
      {" apex l2", {.l2 = true, .grad_averaging = false, .adapt_undecayed = false}},
      {" no ratio", {.adapt_undecayed = false}, 0},
      {" deepspeed", {.eps = 1e-8f, .corrected = false, .min_ratio = 0.01f, .max_ratio = 0.3f}, 0},
      {" eps inside", {.eps = 1e-3f, .corrected = false, .eps_inside_sqrt = true}},
  };
  return kRules;
}

void add_lamb(OpCases& to) {
  constexpr int64_t kGroups = 6;  // groups of many_segments(), plus one
  const auto first = [&](const Counts& counts, const Step& s, const NamedRule& r) -> auto& {
    auto& c = step_case<LambMoments>(
        to, counts, {.skip = s.skip, .with_value = false, .master = s.master, .grad = s.grad}, r.name, 2, r.decay);
    c.args.rule = r.rule;
    if (counts.size() > 1 || counts.front() == 0)
      c.inout(&LambMoments::norms, "norms", {kGroups, 2}, normal(), DType::kF64);
    else
      c.out(&LambMoments::norms, "norms", {1, 2}, DType::kF64);
    return c;
  };
  const auto second = [&](const Counts& counts, const Step& s, const NamedRule& r,
                          const std::vector<double>& norms = {2.5, 40}) -> auto& {
    auto& c = step_case<LambApply>(to, counts, s, r.name, 2, r.decay);
    c.args.rule = r.rule;
    const int64_t groups = counts.size() > 1 ? kGroups : 1;
    c.in(&LambApply::norms, "norms", {groups, 2}, values(norms), DType::kF64);
    if (!s.skip) c.inout(&LambApply::ratio, "ratio", {groups});
    return c;
  };
  const NamedRule paper = lamb_rules().front();
  for (const int64_t count : {0, 1, 7, 33, 129, 4096, 70001}) first({count}, {}, paper);
  for (const NamedRule& r : lamb_rules()) {
    if (r.name != paper.name) first({5000}, {}, r);
    first(many_segments(), {}, r);
    second({5001}, {}, r);
    if (r.name != paper.name) second(many_segments(), {}, r, {2.5, 40, 3, 0.5, 0, 7, 1e-3});
  }
  first({129}, {.skip = true}, paper);
  first(many_segments(), {.skip = true}, paper);
  for (const DType t : k16BitDtypes) first({9001}, {.master = t}, paper);
  first({1000}, {}, paper).skew = 1;
  for (const DType master : {DType::kF32, DType::kBF16, DType::kF16})
    first({9001}, {.master = master, .grad = DType::kBF16}, paper);
  first({1000}, {.grad = DType::kBF16}, paper).skew = 1;
  first({1 << 22}, {}, paper).big = true;
  sweep_sizes([&](const Counts& n, const Step& s) { second(n, s, paper); });
  odd_ones([&](const Counts& n, const Step& s) -> auto& { return second(n, s, paper); });
  second({65}, {.with_value = false}, {" zero weights", {}}, {0, 3});
  second({65}, {.with_value = false}, {" zero update", {}}, {3, 0});
}

void add_stochastic_round(OpCases& to) {
  using R = StochasticRound;
  const auto one = [&](int64_t count, R at, const Fill& fill, bool skip, const char* what = "") -> auto& {
    auto& c = add_case<R>(to, cat("[", count, "] from ", at.first, " rows of ", at.cols, " every ", at.stride, what,
                                  skip ? " skipped" : ""));
    c.args = at;
    c.args.key = 0x0123456789abcdef;
    std::vector<double> v(kNumScalars, 0.0);
    v[kStepLow] = 65535, v[kStepHigh] = 3, v[kSkip] = skip ? 1 : 0;
    c.in(&R::src, "src", {count}, fill).in(&R::scalars, "scalars", {kNumScalars}, values(v));
    if (skip)
      c.inout(&R::dst, "dst", {count}, normal(), DType::kBF16);
    else
      c.out(&R::dst, "dst", {count}, DType::kBF16);
    c.tolerance = 0;
    c.flops = 80.0 * static_cast<double>(count);
    return c;
  };
  for (const int64_t count : {0, 1, 7, 33, 129, 70001}) {
    one(count, {.cols = 1 << 20, .stride = 1 << 20}, normal(), false);
    one(count, {.base = 5, .first = 3, .cols = 31, .stride = 124}, normal(1e-3), false);
  }
  one(129, {.base = 1 << 20, .first = 2, .cols = 7, .stride = 9}, normal(), true);
  one(1000, {.cols = 64, .stride = 128}, normal(), false).skew = 1;
  one(64, {.cols = 64, .stride = 64}, values({0, -0.0, 1, -1.5, 1e-40, -3e-39, 0x1p-130, 0x1.fffffep127}), false,
      " edges")
      .non_finite = true;
  one(1 << 22, {.cols = 1024, .stride = 4096}, normal(), false).big = true;
}

}  // namespace

void add_optim_cases(OpCases& to) {
  add_adamw(to);
  add_sgd(to);
  add_lion(to);
  add_adagrad(to);
  add_lamb(to);
  add_stochastic_round(to);
}

}  // namespace gt::test
