// Optimizers through the store that owns the tensor ranges: fixed values, skipped steps, decay, state names; the clip
// factor.
#include "optim/optimizer.h"

#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "tests/optim/optimizer_fixture.h"

using namespace gt;

namespace {

// The update in double, for cases that the fixed values do not cover.
Four reference(const std::string& type, double decay, int steps, double scale = 1) {
  Four p = kStart, m{}, v{};
  for (int t = 1; t <= steps; ++t)
    for (size_t i = 0; i < 4; ++i) {
      const double g = kGrads[t - 1][i] * scale + (type == "adam" ? decay * p[i] : 0);
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.999 * v[i] + 0.001 * g * g;
      p[i] -= 0.01 * (m[i] / (1 - std::pow(0.9, t)) / (std::sqrt(v[i] / (1 - std::pow(0.999, t))) + 1e-6) +
                      (type == "adamw" ? decay * p[i] : 0));
    }
  return p;
}

struct Clip {
  float norm, multiplier, skip;
};
Clip clip(std::vector<double> squares, float limit, float denominator) {
  std::array<float, kNumScalars> scalars{};
  float norm = -1;
  const auto tensor = [](void* p, int64_t n, DType t) { return Tensor{static_cast<std::byte*>(p), {n}, t, {}}; };
  cpu_backend().ops->clip_factor(
      {.norm_squares = tensor(squares.data(), static_cast<int64_t>(squares.size()), DType::kF64),
       .scalars = tensor(scalars.data(), kNumScalars, DType::kF32),
       .norm = tensor(&norm, 1, DType::kF32),
       .clip = limit,
       .denominator = denominator},
      {});
  for (int other : {kLr, kBeta1, kBiasCorrection1, kBiasCorrection2}) CHECK(scalars[static_cast<size_t>(other)] == 0);
  return {norm, scalars[kGradMultiplier], scalars[kSkip]};
}

}  // namespace

TEST_CASE("adamw and adam return the fixed numbers after one and three steps") {
  OptimizerFixture w(options("adamw")), l2(options("adam"));
  w.step(1, kGrads[0]);
  l2.step(1, kGrads[0]);
  check_values(w.matrix, {.489950100, -.989900050, 1.989800033, .239975025});
  check_values(l2.matrix, {.490000095, -.990000048, 1.990000031, .240000025});
  for (int t : {2, 3}) {
    w.step(t, kGrads[t - 1]);
    l2.step(t, kGrads[t - 1]);
  }
  check_values(w.matrix, {.480607978, -.989765945, 1.974180687, .237710666});
  check_values(l2.matrix, {.479990912, -.988952327, 1.974184805, .237634046});
}

TEST_CASE("weight decay applies to the parameters that have it and to no others") {
  for (const char* type : {"adamw", "adam"}) {
    OptimizerFixture rig(options(type, 0.3f));
    for (int t : {1, 2, 3}) rig.step(t, kGrads[t - 1]);
    check_values(rig.matrix, reference(type, 0.3, 3));
    check_values(rig.bias, reference(type, 0, 3));
    CHECK(rig.bias.value.as<float>()[2] != rig.matrix.value.as<float>()[2]);
  }
}

TEST_CASE("the gradient multiplier scales gradients before anything else") {
  OptimizerFixture rig(options("adam", 0.3f));  // L2 decay is not scaled with the gradient
  for (int t : {1, 2, 3}) rig.step(t, kGrads[t - 1], 0.125f, false, 8);
  check_values(rig.matrix, reference("adam", 0.3, 3));
}

TEST_CASE("a skipped step writes neither values nor state") {
  OptimizerFixture rig(options("adamw")), plain(options("adamw"));
  rig.step(1, kGrads[0]);
  plain.step(1, kGrads[0]);
  const double inf = std::numeric_limits<double>::infinity();
  rig.step(2, {inf, -inf, std::nan(""), 1}, 1, true);
  check_values(rig.matrix, {.489950100, -.989900050, 1.989800033, .239975025});
  for (int t : {2, 3}) {  // the moments were not updated either: the rest is bitwise the run without the skipped step
    rig.step(t, kGrads[t - 1]);
    plain.step(t, kGrads[t - 1]);
  }
  for (int i = 0; i < 4; ++i) CHECK(rig.matrix.value.as<float>()[i] == plain.matrix.value.as<float>()[i]);
}

TEST_CASE("state views hold both moments of every parameter by name") {
  OptimizerFixture rig(options("adamw"));
  rig.step(1, kGrads[0]);
  std::map<std::string, ShardView> views;
  for (const ShardView& v : rig.optimizer->state_views(rig.store)) {
    CHECK(v.save);
    CHECK(views.emplace(v.name, v).second);
  }
  REQUIRE(views.size() == 4);
  for (const char* name : {"layer.weight", "layer.bias"}) {
    const ShardView &m = views.at(std::string("optim/exp_avg/") + name),
                    &v = views.at(std::string("optim/exp_avg_sq/") + name);
    CHECK(m.full == (name == std::string("layer.bias") ? Shape{4} : Shape{2, 2}));
    CHECK(m.begin == 0);
    for (size_t i = 0; i < 4; ++i) {
      CHECK(m.data.as<float>()[i] == Approx(0.1 * kGrads[0][i]).epsilon(1e-6));
      CHECK(v.data.as<float>()[i] == Approx((1 - double{0.999f}) * kGrads[0][i] * kGrads[0][i]).epsilon(1e-5));
    }
  }
  CHECK(rig.optimizer->state_bytes() == 2 * 64 * 4);  // two f32 moments of the flat unit, padding included
}

TEST_CASE("bias corrections stay exact after many steps and an unknown optimizer lists the known ones") {
  OptimizerFixture rig(options("adamw"));
  std::array<float, kNumScalars> s{};
  rig.optimizer->fill_scalars(1, {0.5}, s.data());
  CHECK(s[kLr] == 0.5f);
  CHECK(s[kBeta1] == 0.9f);
  CHECK(s[kBeta2] == 0.999f);
  CHECK(s[kBiasCorrection1] == Approx(1 - double{0.9f}).epsilon(1e-7));
  CHECK(s[kBiasCorrection2] == Approx(1 - double{0.999f}).epsilon(1e-7));
  rig.optimizer->fill_scalars(1000000, {}, s.data());
  CHECK(s[kBiasCorrection1] == 1);
  CHECK(s[kBiasCorrection2] == 1);
  CHECK_THROWS_WITH(OptimizerFixture(options("adamx")),
                    Catch::Contains("adamx") && Catch::Contains("adamw, adam, lamb, sgd, lion"));
}

TEST_CASE("the clip factor is min(1, clip / (norm + 1e-6)) over the denominator") {
  for (float denominator : {1.f, 4.f, 24.f})
    for (float limit : {1.f, 0.5f, 100.f, 0.f}) {
      const Clip c = clip({9, 0, 16, 144}, limit, denominator);  // 13 before the division
      const double norm = 13.0 / denominator, factor = limit == 0 ? 1 : std::min(1.0, limit / (norm + 1e-6));
      CHECK(c.norm == Approx(norm).epsilon(1e-6));
      CHECK(c.multiplier == Approx(factor / denominator).epsilon(1e-6));
      CHECK(c.skip == 0);
    }
  CHECK(clip({0, 0}, 1, 1).multiplier == 1);
  for (double bad : {double{INFINITY}, std::nan("")})
    for (float limit : {1.f, 0.f}) CHECK(clip({1, bad, 2}, limit, 2).skip == 1);
  // A sum of finite squares that overflows f32 only is not a reason to skip.
  CHECK(clip({1e60}, 1, 1).skip == 0);
}
