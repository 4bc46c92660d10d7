// Cases of the optimizer steps.
#include <string>
#include <vector>

#include "tests/kernels/op_cases.h"

namespace gt::test {
namespace {

struct Step {
  bool skip = false;
  DType value = DType::kF32;
  bool with_value = true;
  DType master = DType::kF32;  // of a half type: without a value beside it
  DType grad = DType::kF32;
};

// A learning rate so large that an error in the update is an error of the same size in the master. Multiplier 0.5.
Fill scalar_values(bool skip) {
  std::vector<double> v(kNumScalars, 1.0);
  v[kLr] = 0.5, v[kBeta1] = 0.9, v[kBeta2] = 0.95, v[kBiasCorrection1] = 0.271, v[kBiasCorrection2] = 0.1855;
  v[kGradMultiplier] = 0.5, v[kSkip] = skip ? 1 : 0, v[kGradShare] = 0.7;
  return values(v);
}

std::string text(const Step& s) {
  return cat(s.skip ? " skipped" : "", s.with_value ? " value " : "", s.with_value ? name_of(s.value) : "") +
         (s.master == DType::kF32 ? "" : cat(" master ", name_of(s.master))) + grad_suffix(s.grad);
}

// Master, gradient, scalars and value; the case's own state comes after.
template <class A>
CaseOf<A>& step_case(OpCases& to, int64_t count, const Step& s, const std::string& what) {
  auto& c = add_case<A>(to, cat("[", count, "]", what, text(s)));
  c.inout(&A::master, "master", {count}, normal(), s.master);
  c.in(&A::scalars, "scalars", {kNumScalars}, scalar_values(s.skip));
  if constexpr (requires { &A::grad; }) c.in(&A::grad, "grad", {count}, normal(3), s.grad);
  if constexpr (requires { &A::value; }) {
    if (s.with_value && s.skip) c.inout(&A::value, "value", {count}, normal(), s.value);
    if (s.with_value && !s.skip) c.out(&A::value, "value", {count}, s.value);
  }
  c.tolerance = s.skip ? 0 : s.value == DType::kF32 ? unit_of(s.master) : 1e-3;
  c.flops = 14.0 * static_cast<double>(count);
  return c;
}

// `add(count, step)` for sizes and kinds of value; then what only some sizes need.
template <class F>
void sweep_sizes(F add) {
  for (const int64_t count : {0, 1, 7, 33, 129, 70001}) {
    add(count, Step{});
    add(count, Step{.with_value = false});
    add(count, Step{.value = DType::kBF16});
    add(count, Step{.skip = true});
  }
}
template <class F>
void bf16_gradients(F add) {
  for (const int64_t count : {1, 33, 9001}) add(count, Step{.value = DType::kBF16, .grad = DType::kBF16});
  add(129, Step{.with_value = false, .grad = DType::kBF16});
  add(9001, Step{.with_value = false, .master = DType::kBF16, .grad = DType::kBF16});
  add(129, Step{.with_value = false, .master = DType::kF16, .grad = DType::kBF16});
  add(129, Step{.skip = true, .grad = DType::kBF16});
  add(1000, Step{.value = DType::kF16, .grad = DType::kBF16}).skew = 1;
  add(1 << 22, Step{.value = DType::kBF16, .grad = DType::kBF16}).big = true;
}
template <class F>
void odd_ones(F add) {
  add(129, Step{.value = DType::kF16});
  add(129, Step{.skip = true, .value = DType::kBF16});
  add(1000, Step{.value = DType::kBF16}).skew = 1;
  for (const DType t : kHalves) {
    add(9001, Step{.with_value = false, .master = t});
    add(129, Step{.skip = true, .with_value = false, .master = t});
  }
  add(1 << 22, Step{.value = DType::kBF16}).big = true;
}

void add_adamw(OpCases& to) {
  const auto one = [&](int64_t count, const Step& s, bool l2, float decay) -> auto& {
    auto& c = step_case<AdamW>(to, count, s, cat(l2 ? " l2" : "", decay == 0 ? " no decay" : ""));
    c.args.weight_decay = decay, c.args.adam_l2 = l2;
    return c.inout(&AdamW::m, "m", {count}, normal(0.3)).inout(&AdamW::v, "v", {count}, positive());
  };
  for (const bool l2 : {false, true}) sweep_sizes([&](int64_t n, const Step& s) { one(n, s, l2, 0.1f); });
  odd_ones([&](int64_t n, const Step& s) -> auto& { return one(n, s, false, 0.1f); });
  bf16_gradients([&](int64_t n, const Step& s) -> auto& { return one(n, s, false, 0.1f); });
  one(129, {}, false, 0);
}

void add_sgd(OpCases& to) {
  const auto one = [&](int64_t count, const Step& s, bool momentum, bool nesterov) -> auto& {
    auto& c = step_case<Sgd>(to, count, s, cat(momentum ? " momentum" : "", nesterov ? " nesterov" : ""));
    c.args.weight_decay = 0.1f, c.args.nesterov = nesterov;
    if (momentum) c.inout(&Sgd::m, "m", {count}, normal(0.3));
    return c;
  };
  for (const bool nesterov : {false, true}) sweep_sizes([&](int64_t n, const Step& s) { one(n, s, true, nesterov); });
  odd_ones([&](int64_t n, const Step& s) -> auto& { return one(n, s, true, false); });
  bf16_gradients([&](int64_t n, const Step& s) -> auto& { return one(n, s, true, false); });
  for (const int64_t n : {0, 33, 5000}) one(n, {}, false, false);
}

void add_lion(OpCases& to) {
  const auto one = [&](int64_t count, const Step& s) -> auto& {
    auto& c = step_case<Lion>(to, count, s, "");
    c.args.weight_decay = 0.1f;
    return c.inout(&Lion::m, "m", {count}, normal(0.3));
  };
  sweep_sizes(one);
  odd_ones(one);
  bf16_gradients(one);
  auto& zero = step_case<Lion>(to, 40, {}, " gradient and momentum zero");
  zero.args.weight_decay = 0;
  zero.inout(&Lion::m, "m", {40}, values({0, 0, 1, -1}));
}

struct NamedRule {
  const char* name;
  LambRule rule;
};
const std::vector<NamedRule>& lamb_rules() {
  static const std::vector<NamedRule> kRules{
      {" paper", {.weight_decay = 0.1f}},
      {" clamped norm", {.weight_decay = 0.1f, .max_norm = 0.5f}},
      {" apex l2", {.weight_decay = 0.1f, .l2 = true, .grad_averaging = false}},
      {" no ratio", {.adapt = false}},
      {" deepspeed", {.eps = 1e-8f, .corrected = false, .min_ratio = 0.01f, .max_ratio = 0.3f}},
      {" eps inside", {.eps = 1e-3f, .weight_decay = 0.1f, .corrected = false, .eps_inside_sqrt = true}},
  };
  return kRules;
}

void add_lamb(OpCases& to) {
  const auto first = [&](int64_t count, const Step& s, const NamedRule& r, bool norms, bool accumulate) -> auto& {
    auto& c = step_case<LambMoments>(to, count,
                                     {.skip = s.skip, .with_value = false, .master = s.master, .grad = s.grad},
                                     cat(r.name, norms ? "" : " no norms", accumulate ? " accumulate" : ""));
    c.args.rule = r.rule, c.args.accumulate = accumulate;
    c.inout(&LambMoments::m, "m", {count}, normal(0.3)).inout(&LambMoments::v, "v", {count}, positive());
    if (norms) c.result(&LambMoments::norms, "norms", {2}, accumulate, DType::kF64);
    return c;
  };
  const auto second = [&](int64_t count, const Step& s, const NamedRule& r) -> auto& {
    auto& c = step_case<LambApply>(to, count, s, r.name);
    c.args.rule = r.rule;
    c.in(&LambApply::m, "m", {count}, normal(0.3)).in(&LambApply::v, "v", {count}, positive());
    c.in(&LambApply::norms, "norms", {2}, values({2.5, 40}), DType::kF64);
    if (!s.skip) c.out(&LambApply::ratio, "ratio", {1});
    return c;
  };
  const NamedRule paper = lamb_rules().front();
  for (const int64_t count : {0, 1, 7, 33, 129, 4096, 70001})
    for (const bool accumulate : {false, true}) first(count, {}, paper, true, accumulate);
  for (const NamedRule& r : lamb_rules()) {
    first(129, {}, r, false, false);
    if (r.name != paper.name) first(5000, {}, r, true, false);
    second(5001, {}, r);
  }
  first(129, {.skip = true}, paper, true, true);
  for (const DType t : kHalves) first(9001, {.master = t}, paper, true, false);
  first(1000, {}, paper, true, false).skew = 1;
  for (const DType master : {DType::kF32, DType::kBF16, DType::kF16})
    first(9001, {.master = master, .grad = DType::kBF16}, paper, true, false);
  first(1000, {.grad = DType::kBF16}, paper, true, true).skew = 1;
  first(1 << 22, {}, paper, true, false).big = true;
  sweep_sizes([&](int64_t n, const Step& s) { second(n, s, paper); });
  odd_ones([&](int64_t n, const Step& s) -> auto& { return second(n, s, paper); });
  for (const auto& [name, norms] : {std::pair{" zero weights", std::vector<double>{0, 3}},
                                    {" zero update", std::vector<double>{3, 0}}}) {
    auto& c = step_case<LambApply>(to, 65, {.with_value = false}, name);
    c.in(&LambApply::m, "m", {65}, normal(0.3)).in(&LambApply::v, "v", {65}, positive());
    c.in(&LambApply::norms, "norms", {2}, values(norms), DType::kF64).out(&LambApply::ratio, "ratio", {1});
  }
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
    if (skip) c.inout(&R::dst, "dst", {count}, normal(), DType::kBF16);
    else c.out(&R::dst, "dst", {count}, DType::kBF16);
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
      " edges").non_finite = true;
  one(1 << 22, {.cols = 1024, .stride = 4096}, normal(), false).big = true;
}

}  // namespace

void add_optim_cases(OpCases& to) {
  add_adamw(to);
  add_sgd(to);
  add_lion(to);
  add_lamb(to);
  add_stochastic_round(to);
}

}  // namespace gt::test
