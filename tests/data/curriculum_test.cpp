// Curriculum lengths against DeepSpeed's values, and the loader that truncates samples to them.
#include "data/samples/curriculum.h"

#include <algorithm>
#include <cstring>

#include "data/samples/loader.h"
#include "tests/data/support.h"
#include "tests/support/test.h"

using namespace gt;
using namespace gt::test;

namespace {

using Type = CurriculumType;

std::vector<int64_t> lengths(const Curriculum& c, const std::vector<int64_t>& steps) {
  std::vector<int64_t> out;
  for (const int64_t t : steps) out.push_back(c.length(t));
  return out;
}

const Curriculum kSmall{.type = Type::kFixedLinear, .min = 8, .max = 128, .steps = 100, .step = 8};

}  // namespace

TEST_CASE("lengths grow as in DeepSpeed's fixed_linear and fixed_root") {
  CHECK(lengths(kSmall, {0, 1, 10, 25, 50, 75, 99}) == std::vector<int64_t>{8, 8, 16, 32, 64, 96, 120});
  CHECK(lengths(kSmall, {100, 101, int64_t{1} << 60}) == std::vector<int64_t>{128, 128, 128});
  Curriculum c{.type = Type::kFixedLinear, .min = 64, .max = 1024, .steps = 1000, .step = 64};
  const std::vector<int64_t> steps{0, 1, 50, 100, 250, 500, 900, 999, 1000, 2000};
  CHECK(lengths(c, steps) == std::vector<int64_t>{64, 64, 64, 128, 256, 512, 896, 960, 1024, 1024});
  c.type = Type::kFixedRoot, c.root = 2;
  CHECK(lengths(c, steps) == std::vector<int64_t>{64, 64, 256, 320, 512, 704, 960, 960, 1024, 1024});
  c.max = 1000;  // not a multiple, but still reached
  CHECK(c.length(1000) == 960);
  CHECK(c.length(1001) == 1000);
}

TEST_CASE("a list of lengths keeps each until its step, the last one to the end") {
  const Curriculum c{.type = Type::kFixedDiscrete, .lengths = {8, 24, 16}, .until = {2, 5}};
  CHECK(lengths(c, {0, 1, 2, 3, 5, 6, 1000}) == std::vector<int64_t>{8, 8, 8, 24, 24, 16, 16});
  CHECK(c.all_lengths() == std::vector<int64_t>{8, 16, 24});
}

TEST_CASE("every length of a run is in the list of all lengths") {
  for (const int64_t min : {8, 13, 64})
    for (const int64_t max : {64, 100})
      for (const int64_t multiple : {1, 8, 7})
        for (const int64_t root : {1, 2, 3}) {
          const Curriculum c{Type::kFixedRoot, min, max, 37, multiple, root, {}, {}};
          const std::vector<int64_t> all = c.all_lengths();
          for (int64_t t = 1; t <= 40; ++t) CHECK(std::find(all.begin(), all.end(), c.length(t)) != all.end());
        }
}

TEST_CASE("the loader truncates each sample step by step, with unchanged order and count") {
  const auto dataset = open_dataset({.sources = {{.path = "mock"}}, .seq = 128, .vocab = 500});
  LoaderConfig config{.seq = 128, .micro_batch = 2, .microbatches = 3, .dp_rank = 1, .dp_size = 2};
  Loader whole(*dataset, config, {}, host_device(), {});
  config.curriculum = kSmall;
  config.first_step = 48;
  Loader cut(*dataset, config, {}, host_device(), {});
  for (int step = 0; step < 8; ++step) {
    const int64_t s = kSmall.length(48 + step);
    const auto a = whole.next(), b = cut.next();
    REQUIRE(a.size() == b.size());
    CHECK(cut.step_tokens() == 3 * 2 * s);
    CHECK(cut.consumed() == whole.consumed());
    for (size_t k = 0; k < a.size(); ++k) {
      CHECK(b[k].seq == s);
      CHECK(b[k].first_sample == a[k].first_sample);
      CHECK(b[k].loss_tokens == 2 * s);
      REQUIRE((b[k].tokens.shape == Shape{2, s} && b[k].targets.shape == Shape{2, s}));
      for (int64_t i = 0; i < 2; ++i) {
        const auto same = [&](const Tensor& x, const Tensor& y) {
          return std::memcmp(x.as<int32_t>() + i * 128, y.as<int32_t>() + i * s, static_cast<size_t>(s) * 4) == 0;
        };
        CHECK(same(a[k].tokens, b[k].tokens));
        CHECK(same(a[k].targets, b[k].targets));
      }
    }
  }
}
