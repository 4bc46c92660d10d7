// Muon against PyTorch's in double over 50 steps (tests/golden/muon_curves.txt): wide, tall and square matrices, both
// scales, with Nesterov momentum and without, all coefficients.
#include <cmath>
#include <fstream>
#include <map>
#include <span>
#include <sstream>

#include "kernels/core/enum_names.h"
#include "optim/optimizer.h"
#include "parallel/comm/self_group.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

constexpr int kSteps = 50;

struct Case {
  int64_t rows = 0, cols = 0;
  OptimizerOptions options{.type = "muon", .weight_decay = 0.1f};
  std::map<int, std::vector<double>> weights;  // by step
};

std::vector<Case> read_cases() {
  std::vector<Case> out;
  std::ifstream in(source_dir() + "/tests/golden/muon_curves.txt");
  std::string line, first;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    words >> first;
    if (first == "case") {
      Case& c = out.emplace_back();
      OptimizerOptions& o = c.options;
      std::string scale, coefficients;
      words >> c.rows >> c.cols >> scale >> o.momentum >> o.nesterov >> o.muon_iterations >> coefficients;
      o.muon_scale = value_named<MuonScale>(scale).value();
      o.muon_coefficients = value_named<MuonCoefficients>(coefficients).value();
      continue;
    }
    std::vector<double>& w = out.back().weights[std::stoi(first)];
    for (double x = 0; words >> x;) w.push_back(x);
  }
  return out;
}

// The formulas of tests/golden/make_muon_curves.py.
double start(int64_t i, int64_t j) { return 0.5 * std::sin(static_cast<double>(i + 2 * j)); }
double gradient(int t, int64_t row, int64_t col) {
  const auto i = static_cast<double>(row), j = static_cast<double>(col);
  return 0.1 * std::sin(1.7 * t + 12.9898 * i + 78.233 * j) + 0.03 * std::cos(0.9 * t + 4.1 * i * j);
}

// Largest difference of the weights after a step from the reference, relative to the largest weight.
double worst_error(const Case& c) {
  SelfFactory factory;
  const Mesh mesh({}, factory);
  Parameter p;
  p.name = "layer.weight";
  p.full_shape = p.local_shape = {c.rows, c.cols};
  p.matrices = 1;
  ParamStore store({{"layer", {&p}, 0, 0}}, 1, {}, mesh, cpu_backend(), {});
  const auto optimizer = make_optimizer(c.options, store, mesh, cpu_backend(), {});
  std::vector<float> scalars(static_cast<size_t>(c.options.scalar_rows() * kNumScalars));
  const Tensor row{
      reinterpret_cast<std::byte*>(scalars.data()), {static_cast<int64_t>(scalars.size())}, DType::kF32, {}};
  const auto each = [&](auto f) {
    for (int64_t k = 0; k < c.rows * c.cols; ++k) f(k, k / c.cols, k % c.cols);
  };
  each([&](int64_t k, int64_t i, int64_t j) { p.value.as<float>()[k] = static_cast<float>(start(i, j)); });
  double worst = 0;
  for (int t = 1; t <= kSteps; ++t) {
    each([&](int64_t k, int64_t i, int64_t j) { p.grad.as<float>()[k] = static_cast<float>(gradient(t, i, j)); });
    optimizer->fill_scalars(t, {0.02}, scalars.data());
    scalars[kGradMultiplier] = 1;
    optimizer->step(row, {});
    const auto expected = c.weights.find(t);
    if (expected == c.weights.end()) continue;
    double largest = 0, error = 0;
    each([&](int64_t k, int64_t, int64_t) {
      const double w = expected->second.at(static_cast<size_t>(k));
      largest = std::max(largest, std::fabs(w));
      error = std::max(error, std::fabs(double{p.value.as<float>()[k]} - w));
    });
    worst = std::max(worst, error / largest);
  }
  return worst;
}

// Weights of the parameters after two steps.
std::vector<float> after_two_steps(std::span<Parameter* const> params) {
  SelfFactory factory;
  const Mesh mesh({}, factory);
  const OptimizerOptions o{.type = "muon", .weight_decay = 0.1f, .momentum = 0.9f, .muon_scale = MuonScale::kOriginal};
  ParamStore store({{"layer", {params.begin(), params.end()}, 0, 0}}, 1, {}, mesh, cpu_backend(), {});
  const auto optimizer = make_optimizer(o, store, mesh, cpu_backend(), {});
  std::vector<float> scalars(static_cast<size_t>(o.scalar_rows() * kNumScalars)), out;
  const Tensor row{
      reinterpret_cast<std::byte*>(scalars.data()), {static_cast<int64_t>(scalars.size())}, DType::kF32, {}};
  const auto each = [&](auto f) {
    int64_t row_of_all = 0;
    for (Parameter* p : params)
      for (int64_t i = 0; i < p->full_shape.rows(); ++i, ++row_of_all)
        for (int64_t j = 0; j < p->full_shape.cols(); ++j) f(p, i * p->full_shape.cols() + j, row_of_all, j);
  };
  each([&](Parameter* p, int64_t k, int64_t i, int64_t j) {
    p->value.as<float>()[k] = static_cast<float>(start(i, j));
  });
  for (int t = 1; t <= 2; ++t) {
    each([&](Parameter* p, int64_t k, int64_t i, int64_t j) {
      p->grad.as<float>()[k] = static_cast<float>(gradient(t, i, j));
    });
    optimizer->fill_scalars(t, {0.02}, scalars.data());
    scalars[kGradMultiplier] = 1;
    optimizer->step(row, {});
  }
  each([&](Parameter* p, int64_t k, int64_t, int64_t) { out.push_back(p->value.as<float>()[k]); });
  return out;
}

}  // namespace

TEST_CASE("Muon equals PyTorch over 50 steps on matrices of any shape") {
  const std::vector<Case> cases = read_cases();
  REQUIRE(cases.size() == 10);
  for (const Case& c : cases) {
    REQUIRE(c.weights.size() == 3);
    INFO(c.rows << " x " << c.cols << " " << name_of(c.options.muon_scale) << " "
                << name_of(c.options.muon_coefficients));
    CHECK(worst_error(c) < 1e-5);
  }
}

TEST_CASE("the matrices of a fused weight, and those of experts, are updated apart") {
  const auto weight = [](const char* name, int64_t rows, int matrices) {
    Parameter p;
    p.name = name;
    p.full_shape = p.local_shape = {rows, 5};
    p.matrices = matrices;
    return p;
  };
  const auto fused = [&](ShardSpec shard, int matrices) {
    Parameter p = weight("qkv.weight", 12, matrices);
    p.shard = shard;
    Parameter* const all[] = {&p};
    return after_two_steps(all);
  };
  const auto apart = [&](std::vector<int64_t> rows) {
    std::vector<Parameter> params;
    for (const int64_t n : rows) params.push_back(weight(rows.size() == 3 ? "part.weight" : "one.weight", n, 1));
    std::vector<Parameter*> all;
    for (size_t k = 0; k < params.size(); ++k) params[k].name += std::to_string(k), all.push_back(&params[k]);
    return after_two_steps(all);
  };
  CHECK(fused(ShardSpec::split(0, 3), 3) == apart({4, 4, 4}));
  CHECK(fused(ShardSpec::qkv(4, 1), 3) == apart({8, 2, 2}));
  CHECK(fused(ShardSpec::partial(), 3) == apart({4, 4, 4}));  // adapters of Q, K and V
  CHECK(fused(ShardSpec::split(1), 1) == apart({12}));
  CHECK(fused(ShardSpec::split(0, 3), 3) != apart({12}));
  const auto experts = [&](int64_t count, int64_t rows, int matrices) {
    Parameter p = weight("experts.weight", count * rows, matrices);
    p.full_shape = p.local_shape = {count, rows, 5};
    p.shard = ShardSpec::split(0, 1, Axis::kEp).then(ShardSpec::split(1, matrices));
    Parameter* const all[] = {&p};
    return after_two_steps(all);
  };
  CHECK(experts(3, 4, 1) == apart({4, 4, 4}));
  CHECK(experts(2, 6, 2) == apart({3, 3, 3, 3}));  // gates and ups
}

TEST_CASE("the learning rate of Muon's matrices may differ from AdamW's") {
  std::vector<Case> cases = read_cases();
  OptimizerOptions& o = cases.at(0).options;
  o.muon_lr_scale = 0.5f;
  CHECK(worst_error(cases[0]) > 1e-2);
  const auto rates = [&](double lr) {
    std::vector<float> scalars(static_cast<size_t>(o.scalar_rows() * kNumScalars));
    SelfFactory factory;
    const Mesh mesh({}, factory);
    Parameter p;
    p.name = "layer.weight";
    p.full_shape = p.local_shape = {2, 2};
    p.matrices = 1;
    ParamStore store({{"layer", {&p}, 0, 0}}, 1, {}, mesh, cpu_backend(), {});
    make_optimizer(o, store, mesh, cpu_backend(), {})->fill_scalars(1, {lr}, scalars.data());
    return std::pair{scalars[kLr], scalars[2 * kNumScalars + kLr]};  // AdamW's row, Muon's momentum, Muon's step
  };
  CHECK(rates(0.04) == std::pair{0.04f, 0.02f});
}
