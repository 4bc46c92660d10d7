// Token sampling: pure, so that distributions can be counted.
#include "launch/tools/generate/sampler.h"

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "tests/support/test.h"

using namespace gt;

namespace {

// Returns the share of each token over an even grid of draws, which approximates the distribution.
std::map<int32_t, double> shares(const std::vector<float>& logits, const SamplerOptions& o, int draws = 20000) {
  std::map<int32_t, double> out;
  for (int i = 0; i < draws; ++i) out[sample_token(logits, o, (i + 0.5) / draws)] += 1.0 / draws;
  return out;
}

const std::vector<float> kLogits{std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.3f)};

}  // namespace

TEST_CASE("temperature 0 picks the likeliest token, the lower id on a tie, for any draw") {
  for (double u : {0.0, 0.5, 0.999999}) {
    CHECK(sample_token(kLogits, {.temperature = 0}, u) == 1);
    CHECK(sample_token(std::vector<float>{1, 7, 7, 2, 7}, {.temperature = 0}, u) == 1);
    CHECK(sample_token(std::vector<float>{-5}, {.temperature = 0}, u) == 0);
    CHECK(sample_token(std::vector<float>{-INFINITY, -3, -INFINITY}, {.temperature = 0}, u) == 1);
    CHECK(sample_token(kLogits, {.temperature = 0, .top_k = 3, .top_p = 0.1}, u) == 1);
  }
}

TEST_CASE("temperature 1 samples the softmax and other temperatures sharpen or flatten it") {
  const auto one = shares(kLogits, {.temperature = 1});
  CHECK(one.at(0) == Approx(0.1).margin(2e-4));
  CHECK(one.at(1) == Approx(0.4).margin(2e-4));
  CHECK(one.at(2) == Approx(0.2).margin(2e-4));
  CHECK(one.at(3) == Approx(0.3).margin(2e-4));
  const auto cold = shares(kLogits, {.temperature = 0.5});  // squared probabilities: 1 16 4 9 of 30
  CHECK(cold.at(0) == Approx(1 / 30.0).margin(2e-4));
  CHECK(cold.at(1) == Approx(16 / 30.0).margin(2e-4));
  CHECK(cold.at(3) == Approx(9 / 30.0).margin(2e-4));
  CHECK(shares(kLogits, {.temperature = 1e6}).at(0) == Approx(0.25).margin(1e-3));
}

TEST_CASE("top_k keeps exactly k tokens, the lower ids of a tie, and renormalizes") {
  const auto two = shares(kLogits, {.temperature = 1, .top_k = 2});
  CHECK(two.size() == 2);
  CHECK(two.at(1) == Approx(4 / 7.0).margin(2e-4));
  CHECK(two.at(3) == Approx(3 / 7.0).margin(2e-4));
  CHECK(shares(kLogits, {.temperature = 1, .top_k = 100}).size() == 4);  // more than the vocabulary: all
  CHECK(shares(kLogits, {.temperature = 1, .top_k = 1}).size() == 1);
  const auto tie = shares({2, 5, 2, 2}, {.temperature = 1, .top_k = 2});
  CHECK(tie.size() == 2);
  CHECK(tie.count(1) == 1);
  CHECK(tie.count(0) == 1);
}

TEST_CASE("top_p keeps the smallest set that reaches its mass, after top_k") {
  CHECK(shares(kLogits, {.temperature = 1, .top_p = 0.39}).size() == 1);
  const auto p = shares(kLogits, {.temperature = 1, .top_p = 0.65});  // 0.4 + 0.3
  CHECK(p.size() == 2);
  CHECK(p.at(1) == Approx(4 / 7.0).margin(2e-4));
  CHECK(shares(kLogits, {.temperature = 1, .top_p = 0.75}).size() == 3);
  CHECK(shares(kLogits, {.temperature = 1, .top_p = 1}).size() == 4);
  CHECK(shares(kLogits, {.temperature = 1, .top_p = 1e-9}).size() == 1);  // never empty
  // top_k keeps three tokens (4/9, 3/9, 2/9); the first two reach 0.75: 7/9.
  CHECK(shares(kLogits, {.temperature = 1, .top_k = 3, .top_p = 0.75}).size() == 2);
}

TEST_CASE("extreme logits and draws stay inside the vocabulary") {
  CHECK(sample_token(std::vector<float>{1e30f, -1e30f, 0}, {.temperature = 1}, 0.999999999) == 0);
  const std::vector<float> padded{0, 0, -INFINITY, -INFINITY};
  for (double u : {0.0, 0.3, 0.5, 0.999999999999}) CHECK(sample_token(padded, {.temperature = 1}, u) < 2);
  CHECK(sample_token(padded, {.temperature = 1}, 0) == 0);
  CHECK_THROWS_WITH(sample_token({}, {}, 0.5), Catch::Contains("no logits"));
}

TEST_CASE("non-finite logits are refused") {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  const SamplerOptions greedy{.temperature = 0};
  for (const std::vector<float>& bad : {std::vector<float>{kNan, kNan}, {0, kNan}, {0, kInf}, {-kInf, -kInf}})
    for (const SamplerOptions& o : {SamplerOptions{}, greedy, SamplerOptions{.top_k = 1}, SamplerOptions{.top_p = 0.5}})
      CHECK_THROWS_WITH(sample_token(bad, o, 0.5), Catch::Contains("logits are not finite"));
  CHECK(sample_token(std::vector<float>{-kInf, 0}, {}, 0.5) == 1);
}
