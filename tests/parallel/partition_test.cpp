// The partition rules against the GPT-2 124M fixtures, brute force, and bad input.
#include "parallel/pipeline/partition.h"

#include <algorithm>
#include <random>
#include <tuple>

#include "kernels/core/check.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

using Boundaries = std::vector<int>;

// GPT-2 124M, tied, sequence 1024.
std::vector<LayerCost> gpt2() {
  std::vector<LayerCost> out{{"embedding", 0, 38597376}};
  for (int i = 0; i < 12; ++i) out.push_back({"block", 15728640, 7087872});
  out.push_back({"norm", 0, 0});
  out.push_back({"head", 77194752, 38597376});
  return out;
}

std::vector<LayerCost> random_layers(std::mt19937& rng, size_t n) {
  std::vector<LayerCost> out(n);
  for (LayerCost& l : out) l = {"block", static_cast<int64_t>(rng() % 6), 0};
  return out;
}

// Searches all partitions in lexicographic order; returns the first best one.
Boundaries best_by_search(const std::vector<LayerCost>& layers, int parts) {
  const int n = static_cast<int>(layers.size());
  std::tuple<int64_t, int64_t> best{INT64_MAX, 0};
  Boundaries found, now{0};
  const auto search = [&](auto&& self, int64_t most, int64_t squares) -> void {
    const int done = static_cast<int>(now.size()) - 1;
    if (done == parts) {
      if (now.back() == n && std::tuple(most, squares) < best) best = {most, squares}, found = now;
      return;
    }
    int64_t sum = 0;
    for (int end = now.back() + 1; end <= n; ++end) {
      sum += layers[static_cast<size_t>(end) - 1].flops;
      now.push_back(end);
      self(self, std::max(most, sum), squares + sum * sum);
      now.pop_back();
    }
  };
  search(search, 0, 0);
  return found;
}

}  // namespace

TEST_CASE("GPT-2 124M on four stages is partitioned as specified") {
  const auto layers = gpt2();
  CHECK(partition("flops", layers, 4) == Boundaries{0, 5, 9, 13, 15});
  CHECK(partition("best", layers, 4) == Boundaries{0, 5, 9, 13, 15});
  CHECK(partition("auto", layers, 4) == Boundaries{0, 5, 9, 13, 15});
  CHECK(partition("uniform", layers, 4) == Boundaries{0, 4, 8, 12, 15});
  CHECK(partition("parameters", layers, 4) == Boundaries{0, 1, 7, 14, 15});
}

TEST_CASE("blocks per stage: the embedding joins the first, norm and head the last") {
  const auto layers = gpt2();
  CHECK(partition("4,4,4,0", layers, 4) == Boundaries{0, 5, 9, 13, 15});
  CHECK(partition("3,3,3,3", layers, 4) == Boundaries{0, 4, 7, 10, 15});
  CHECK(partition("0,6,6", layers, 3) == Boundaries{0, 1, 7, 15});
  CHECK(partition("12", layers, 1) == Boundaries{0, 15});
}

TEST_CASE("the type rule gives every stage its share of the matching layers") {
  const auto layers = gpt2();
  for (const char* rule : {"type:block", "type:BLOCK", "type:^bl"}) {
    const Boundaries b = partition(rule, layers, 4);
    for (size_t k = 0; k + 1 < b.size(); ++k)
      CHECK(std::count_if(layers.begin() + b[k], layers.begin() + b[k + 1],
                          [](const LayerCost& l) { return l.type == "block"; }) == 3);
  }
}

TEST_CASE("the flops rule equals an exhaustive search, ties included") {
  std::mt19937 rng(7);
  for (int round = 0; round < 60; ++round) {
    const auto layers = random_layers(rng, 4 + rng() % 6);
    for (int parts = 1; parts <= std::min<int>(5, static_cast<int>(layers.size())); ++parts)
      CHECK(partition("flops", layers, parts) == best_by_search(layers, parts));
  }
}

TEST_CASE("sums of squares beyond 64 bits still decide ties") {
  // The squares of 4e12 overflow; the same weights scaled down have the same best partition.
  const int64_t big = 4'000'000'000'000;
  const std::vector<LayerCost> layers{
      {"block", big}, {"block", big / 2}, {"block", big / 4}, {"block", big / 4}, {"block", big / 2}};
  CHECK(partition("flops", layers, 3) ==
        best_by_search({{"block", 8}, {"block", 4}, {"block", 2}, {"block", 2}, {"block", 4}}, 3));
}

TEST_CASE("every rule covers the list with non-empty stages for every legal number of them") {
  const auto layers = gpt2();
  for (const char* rule : {"flops", "uniform", "parameters", "type:block"})
    for (int parts = 1; parts <= 15; ++parts) {
      const Boundaries b = partition(rule, layers, parts);
      CAPTURE(rule, parts);
      REQUIRE(b.size() == static_cast<size_t>(parts) + 1);
      CHECK(b.front() == 0);
      CHECK(b.back() == 15);
      CHECK(std::is_sorted(b.begin(), b.end(), std::less_equal<>()));
    }
}

TEST_CASE("bad rules are refused with the legal alternatives") {
  const auto layers = gpt2();
  CHECK_THROWS_WITH(partition("flop", layers, 4),
                    Contains("'flop'") && Contains("flops, uniform, parameters, type:REGEX"));
  CHECK_THROWS_WITH(partition("", layers, 4), Contains("legal"));
  CHECK_THROWS_WITH(partition("flops", layers, 16), Contains("16") && Contains("1 to 15"));
  CHECK_THROWS_WITH(partition("flops", layers, 0), Contains("1 to 15"));
  CHECK_THROWS_WITH(partition("type:moe", layers, 4), Contains("block, embedding, head, norm"));
  CHECK_THROWS_WITH(partition("type:(", layers, 4), Contains("not a regular expression"));
  CHECK_THROWS_WITH(partition("4,4,4", layers, 4), Contains("3 stages") && Contains("4"));
  CHECK_THROWS_WITH(partition("4,4,4,1", layers, 4), Contains("13 blocks") && Contains("12"));
  CHECK_THROWS_WITH(partition("4,x,4,4", layers, 4), Contains("'x'"));
  CHECK_THROWS_WITH(partition("4,,4,4", layers, 4), Contains("''"));
  CHECK_THROWS_WITH(partition("6,0,6,0", layers, 4), Contains("stage 1") && Contains("no layer"));
  try {
    partition("flop", layers, 4);
  } catch (const Error& e) { CHECK(e.code() == Exit::kUsage); }
}
