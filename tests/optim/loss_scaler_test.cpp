// The state machine of dynamic loss scaling against a fixed trace, and its invariants under random input.
#include "optim/loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/core/enum_names.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

using Profile = LossScaleProfile;

LossScaleOptions rule(Profile profile, double init, int64_t window) {
  LossScaleOptions o = loss_scale_profile(profile);
  o.init = init;
  o.window = window;
  return o;
}

std::vector<double> trace(const LossScaleOptions& o, const std::vector<int>& overflow) {
  LossScaler s(o);
  std::vector<double> out;
  for (int x : overflow) {
    s.update(x != 0);
    out.push_back(s.scale());
  }
  return out;
}

}  // namespace

TEST_CASE("the deepspeed profile follows the written trace of 25 steps") {
  const std::vector<int> overflow{0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1};
  const std::vector<double> scale{16, 16, 16, 16, 32, 32, 32, 16, 16, 16, 16, 16, 8,
                                  8,  8,  8,  8,  16, 16, 16, 8,  4,  2,  1,  1};
  CHECK(trace(rule(Profile::kDeepSpeed, 16, 4), overflow) == scale);
}

TEST_CASE("profiles differ in the start of the window, in hysteresis and at their limits") {
  const std::vector<int> clean(9, 0), bad(3, 1);
  CHECK(trace(rule(Profile::kDeepSpeed, 8, 4), clean) == std::vector<double>{8, 8, 8, 8, 16, 16, 16, 16, 32});
  CHECK(trace(rule(Profile::kDeepSpeed016, 8, 4), clean) == std::vector<double>{8, 8, 8, 16, 16, 16, 16, 32, 32});
  CHECK(trace(rule(Profile::kTorch, 8, 4), clean) == std::vector<double>{8, 8, 8, 16, 16, 16, 16, 32, 32});
  CHECK(trace(rule(Profile::kDeepSpeed, 8, 4), bad) == std::vector<double>{8, 4, 2});  // hysteresis absorbs the first
  CHECK(trace(rule(Profile::kApex, 8, 4), bad) == std::vector<double>{4, 2, 1});
  CHECK(loss_scale_profile(Profile::kDeepSpeed).init == 0x1p16);
  CHECK(loss_scale_profile(Profile::kDeepSpeed).max == 0x1p24);
  CHECK(loss_scale_profile(Profile::kApex).window == 2000);
  CHECK(loss_scale_profile(Profile::kMegatron).init == 0x1p32);
  CHECK(loss_scale_profile(Profile::kMegatron).max == kMostLossScale);
}

TEST_CASE("with consecutive hysteresis isolated overflows never shrink the scale") {
  LossScaleOptions o = rule(Profile::kDeepSpeed, 8, 1000);
  const std::vector<int> apart{1, 0, 1, 0, 1, 0};
  CHECK(trace(o, apart) == std::vector<double>{8, 8, 4, 4, 2, 2});
  o.consecutive = true;
  CHECK(trace(o, apart) == std::vector<double>(6, 8));
  CHECK(trace(o, {1, 1, 0, 1}) == std::vector<double>{8, 4, 4, 4});
}

TEST_CASE("a fixed scale never changes") {
  CHECK(trace({.dynamic = false, .init = 128}, {1, 0, 1, 1, 0, 0}) == std::vector<double>(6, 128));
}

TEST_CASE("scales are powers of two within their limits, and a restored scaler continues like the original") {
  std::mt19937 random(7);
  for (const Profile profile :
       {Profile::kDeepSpeed, Profile::kDeepSpeed016, Profile::kApex, Profile::kMegatron, Profile::kTorch})
    for (int trial = 0; trial < 50; ++trial) {
      LossScaleOptions o = loss_scale_profile(profile);
      o.window = 1 + static_cast<int64_t>(random() % 6);
      o.hysteresis = 1 + static_cast<int64_t>(random() % 3);
      o.min = 0.25, o.max = 1024, o.init = 16, o.consecutive = random() % 2 == 0;
      LossScaler s(o), other(o);
      const unsigned rarity = 1 + random() % 5;
      for (int step = 0; step < 200; ++step) {
        const bool overflow = random() % rarity == 0;
        const double before = s.scale();
        s.update(overflow);
        INFO(name_of(profile) << " trial " << trial << " step " << step);
        REQUIRE(s.scale() >= o.min);
        REQUIRE(s.scale() <= o.max);
        REQUIRE(std::exp2(std::round(std::log2(s.scale()))) == s.scale());
        REQUIRE((overflow ? s.scale() <= before : s.scale() >= before));
        REQUIRE(s.state().hysteresis >= 1);
        REQUIRE(s.state().hysteresis <= o.hysteresis);
        other.update(overflow);
        if (step % 7 == 3) {  // as a checkpoint does
          LossScaler resumed(o);
          resumed.restore(other.state());
          other = resumed;
        }
        REQUIRE(other.state() == s.state());
      }
    }
}
