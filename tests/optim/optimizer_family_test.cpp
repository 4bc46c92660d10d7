// Every optimizer against fixed values, against PyTorch over 20 steps (tests/golden/optim_curves.txt), and against its
// equations in double where there is no baseline.
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "kernels/core/enum_names.h"
#include "tests/optim/optimizer_fixture.h"
#include "tests/support/paths.h"

using namespace gt;

namespace {

constexpr int kSteps = 20;

Four gradient(int t) {
  Four g;
  for (int i = 0; i < 4; ++i) g[static_cast<size_t>(i)] = 0.1 * (i + 1) * std::sin(1.7 * t + i);
  return g;
}

std::map<std::string, std::vector<Four>> read_golden() {
  std::map<std::string, std::vector<Four>> out;
  std::ifstream in(source_dir() + "/tests/golden/optim_curves.txt");
  std::string line, name, first;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    words >> first;
    if (first == "curve") {
      words >> name;
      continue;
    }
    Four w;
    for (double& x : w) words >> x;
    out[name].push_back(w);
  }
  return out;
}

OptimizerOptions torch_options(const std::string& name) {
  OptimizerOptions o{
      .type = name.substr(0, name.find('_')), .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0};
  if (o.type != "sgd" || name == "sgd_momentum" || name == "sgd_nesterov") o.weight_decay = 0.1f;
  if (name == "sgd_momentum" || name == "sgd_nesterov" || name == "sgd_one_cycle") o.momentum = 0.9f;
  if (name == "sgd_dampening") o.momentum = 0.8f, o.dampening = 0.3f;
  o.nesterov = name == "sgd_nesterov" || name == "muon";
  if (name == "muon") o.momentum = 0.95f;
  return o;
}

// The equations of kernels/ops.h and optim/README.md for one tensor, in double, without optimizations.
struct Plain {
  OptimizerOptions o;
  double lr = 0.01;
  Four w = kStart, m{}, v{};
  double ratio = 1;

  void lion(const Four& g) {
    const double b1 = double{o.beta1}, b2 = double{o.beta2};
    for (size_t i = 0; i < 4; ++i) {
      const double u = b1 * m[i] + (1 - b1) * g[i];
      w[i] -= lr * ((u > 0) - (u < 0) + double{o.weight_decay} * w[i]);
      m[i] = b2 * m[i] + (1 - b2) * g[i];
    }
  }

  void lamb(int t, Four g) {
    const double b1 = double{o.beta1}, b2 = double{o.beta2}, decay = double{o.weight_decay}, eps = double{o.eps};
    const bool apex = o.lamb_variant == LambVariant::kApex, ds = o.lamb_variant == LambVariant::kDeepSpeed;
    const double bc1 = o.bias_correction ? 1 - std::pow(b1, t) : 1, bc2 = o.bias_correction ? 1 - std::pow(b2, t) : 1;
    double weights = 0, updates = 0;
    Four u;
    for (size_t i = 0; i < 4; ++i) {
      if (apex && !o.lamb_adam_w_mode) g[i] += decay * w[i];
      m[i] = b1 * m[i] + (apex && !o.lamb_grad_averaging ? 1 : 1 - b1) * g[i];
      v[i] = b2 * v[i] + (1 - b2) * g[i] * g[i];
      if (ds)
        u[i] = m[i] / (o.lamb_eps_inside_sqrt ? std::sqrt(v[i] + eps) : std::sqrt(v[i]) + eps) + decay * w[i];
      else
        u[i] = m[i] / bc1 / (std::sqrt(v[i] / bc2) + eps) + (apex && !o.lamb_adam_w_mode ? 0 : decay * w[i]);
      weights += w[i] * w[i];
      updates += u[i] * u[i];
    }
    double norm = std::sqrt(weights);
    if (o.lamb_variant == LambVariant::kPaper) norm = std::max(norm, double{o.lamb_min_norm});
    if (o.lamb_variant == LambVariant::kPaper && o.lamb_max_norm > 0) norm = std::min(norm, double{o.lamb_max_norm});
    ratio = norm / std::sqrt(updates);
    if (ds) ratio = std::min(std::max(ratio, double{o.lamb_min_coeff}), double{o.lamb_max_coeff});
    if (apex && !o.lamb_nvlamb && decay == 0) ratio = 1;
    for (size_t i = 0; i < 4; ++i) w[i] -= lr * (ds ? std::sqrt(bc2) / bc1 : 1) * ratio * u[i];
  }
};

void check_near(const Parameter& p, const Four& expected, double epsilon) {
  for (size_t i = 0; i < 4; ++i) CHECK(p.value.as<float>()[i] == Approx(expected[i]).epsilon(epsilon).margin(2e-7));
}

std::map<std::string, float> ratios(const OptimizerFixture& rig) {
  std::map<std::string, float> out;
  for (const TrustRatio& r : rig.optimizer->trust_ratios({})) out[r.tensor] = r.ratio;
  return out;
}

OptimizerOptions lamb(LambVariant variant) {
  OptimizerOptions o = options("lamb");
  o.lamb_variant = variant;
  return o;
}

void check_lamb(const OptimizerOptions& o) {
  INFO("lamb " << name_of(o.lamb_variant) << " decay " << o.weight_decay);
  OptimizerFixture rig(o);
  Plain matrix{o}, bias{o};
  bias.o.weight_decay = 0;
  for (int t = 1; t <= kSteps; ++t) {
    rig.step(t, gradient(t));
    matrix.lamb(t, gradient(t));
    bias.lamb(t, gradient(t));
    INFO("step " << t);
    check_near(rig.matrix, matrix.w, 2e-5);
    check_near(rig.bias, bias.w, 2e-5);
    CHECK(ratios(rig).at("layer.weight") == Approx(matrix.ratio).epsilon(1e-5));
    CHECK(ratios(rig).at("layer.bias") == Approx(bias.ratio).epsilon(1e-5));
  }
}

}  // namespace

TEST_CASE("AdamW, Adam, SGD, Muon and Adagrad equal PyTorch over 20 steps, also with one-cycle momentum") {
  const auto golden = read_golden();
  REQUIRE(golden.size() == 10);
  for (const auto& [name, curve] : golden) {
    REQUIRE(curve.size() == kSteps);
    OptimizerOptions o = torch_options(name);
    const bool cycles = name.find("one_cycle") != std::string::npos;
    o.momentum_varies = cycles;
    const auto schedule =
        make_lr_schedule({.type = "one_cycle_torch", .peak = 0.05, .total_steps = kSteps, .pct_start = 0.4});
    OptimizerFixture rig(o);
    for (int t = 1; t <= kSteps; ++t) {
      if (cycles) rig.point = schedule->at(t);
      rig.step(t, gradient(t));
      INFO(name << " step " << t);
      check_near(rig.matrix, curve[static_cast<size_t>(t) - 1], 5e-6);
    }
  }
}

TEST_CASE("SGD and Lion return the fixed numbers") {
  OptimizerOptions o = options("sgd");
  o.momentum = 0.9f;
  o.weight_decay = 0.01f;
  OptimizerFixture sgd(o);
  OptimizerOptions l = options("lion");
  l.beta2 = 0.99f;
  OptimizerFixture lion(l);
  for (int t : {1, 2}) {
    sgd.step(t, kGrads[t - 1]);
    lion.step(t, kGrads[t - 1]);
    CHECK(sgd.matrix.value.as<float>()[0] == Approx(t == 1 ? .49895 : .498455105).epsilon(1e-6));
    CHECK(lion.matrix.value.as<float>()[0] == Approx(t == 1 ? .48995 : .499901005).epsilon(1e-6));
  }
}

TEST_CASE("SGD keeps a momentum buffer only when there is momentum") {
  CHECK(OptimizerFixture(options("sgd")).optimizer->state_bytes() == 0);
  OptimizerOptions o = options("sgd");
  o.momentum = 0.9f;
  OptimizerFixture rig(o);
  CHECK(rig.optimizer->state_bytes() == 64 * 4);
  rig.step(1, kGrads[0]);
  for (const ShardView& v : rig.optimizer->state_views(rig.store))
    CHECK(v.name.rfind("optim/momentum_buffer/", 0) == 0);
  o.momentum = 0;
  o.momentum_varies = true;
  CHECK(OptimizerFixture(o).optimizer->state_bytes() == 64 * 4);
}

TEST_CASE("Lion follows its equation over 20 steps, with decay on the parameters that have it") {
  OptimizerOptions o{.type = "lion", .beta1 = 0.9f, .beta2 = 0.99f, .weight_decay = 0.3f};
  OptimizerFixture rig(o);
  Plain matrix{o}, bias{o};
  bias.o.weight_decay = 0;
  for (int t = 1; t <= kSteps; ++t) {
    rig.step(t, gradient(t));
    matrix.lion(gradient(t));
    bias.lion(gradient(t));
    check_near(rig.matrix, matrix.w, 5e-6);
    check_near(rig.bias, bias.w, 5e-6);
  }
}

TEST_CASE("LAMB returns the fixed numbers and trust ratios of its three variants") {
  const struct {
    LambVariant variant;
    Four one, three;
    double ratio[3];
  } kFixed[] = {
      {LambVariant::kPaper,
       {.488525829, -.988468685, 1.988354494, .238554286},
       {.466471495, -.988992691, 1.953136300, .233289349},
       {1.141719967, 2.142218048, 2.450355248}},
      {LambVariant::kApex,
       {.488525829, -.988468685, 1.988354494, .238554286},
       {.466471495, -.988992691, 1.953136300, .233289349},
       {1.141719967, 2.142218048, 2.450355248}},
      {LambVariant::kDeepSpeed,
       {.496361242, -.996354921, 1.996343238, .246363253},
       {.491640052, -.996343758, 1.988499690, .245226291},
       {.363416104, .515261333, .507302466}},
  };
  for (const auto& f : kFixed) {
    INFO(name_of(f.variant));
    OptimizerFixture rig(lamb(f.variant));
    for (int t : {1, 2, 3}) {
      rig.step(t, kGrads[t - 1]);
      // 1 - beta2 with beta2 in f32 is off by 1.3e-5; where v is not bias-corrected, half of that shows in the ratio.
      const double tolerance = f.variant == LambVariant::kDeepSpeed ? 1e-5 : 1e-6;
      CHECK(ratios(rig).at("layer.weight") == Approx(f.ratio[t - 1]).epsilon(tolerance));
      if (t != 2) check_values(rig.matrix, t == 1 ? f.one : f.three);
    }
  }
}

TEST_CASE("LAMB follows its equations over 20 steps with every option of every variant") {
  for (const LambVariant variant : {LambVariant::kPaper, LambVariant::kApex, LambVariant::kDeepSpeed})
    check_lamb(lamb(variant));
  OptimizerOptions o = lamb(LambVariant::kPaper);
  o.lamb_min_norm = 0.1f, o.lamb_max_norm = 1.5f, o.weight_decay = 0.2f;
  check_lamb(o);
  o = lamb(LambVariant::kApex);
  o.lamb_adam_w_mode = o.lamb_grad_averaging = false;
  check_lamb(o);
  o.lamb_nvlamb = true, o.weight_decay = 0;
  check_lamb(o);
  o = lamb(LambVariant::kDeepSpeed);
  o.lamb_eps_inside_sqrt = true, o.bias_correction = false, o.weight_decay = 0.1f, o.lamb_max_coeff = 0.4f;
  check_lamb(o);
}

TEST_CASE("a skipped step leaves every optimizer's weights, state and trust ratios unchanged") {
  for (const std::string& type : optimizer_names()) {
    INFO(type);
    OptimizerOptions o = options(type.c_str());
    o.momentum = 0.9f;
    OptimizerFixture rig(o), plain(o);
    const double inf = std::numeric_limits<double>::infinity();
    rig.step(1, kGrads[0]);
    plain.step(1, kGrads[0]);
    rig.step(2, {inf, -inf, std::nan(""), 1}, 1, true);
    CHECK(ratios(rig) == ratios(plain));
    for (int t : {2, 3}) {
      rig.step(t, kGrads[t - 1]);
      plain.step(t, kGrads[t - 1]);
    }
    for (int i = 0; i < 4; ++i) {
      CHECK(rig.matrix.value.as<float>()[i] == plain.matrix.value.as<float>()[i]);
      CHECK(rig.bias.value.as<float>()[i] == plain.bias.value.as<float>()[i]);
    }
  }
}
