// Reductions, broadcasts and gathers of values in host memory.
#include "parallel/comm/host_values.h"

#include <array>
#include <numeric>

#include "tests/parallel/comm_suite.h"
#include "tests/support/test.h"

using namespace gt;

TEST_CASE("host values: numbers, arrays and vectors are reduced in their dtype, other values are moved as bytes") {
  constexpr int kRanks = 3;
  struct Mixed {
    int64_t number;
    char text[8];
  };
  const auto body = [](GroupFactory& factory) {
    std::vector<int> everyone(kRanks);
    std::iota(everyone.begin(), everyone.end(), 0);
    const auto world = factory.make(everyone);
    const int r = world->rank();
    GT_CHECK(max_over(*world, int32_t{r}) == 2 && min_over(*world, int64_t{r} - 5) == -5, "numbers");
    GT_CHECK(sum_over(*world, 0.5 * r) == 1.5 && sum_over(*world, 0.5f) == 1.5f, "floats");
    // Beyond 32 bits, and of both signs: a view of another dtype would lose them.
    GT_CHECK(max_over(*world, std::array{int64_t{r} << 40, -int64_t{r}}) == (std::array{int64_t{2} << 40, int64_t{0}}),
             "an array");
    GT_CHECK(sum_over(*world, std::vector<double>{1.0 * r, 1}) == (std::vector<double>{3, 3}), "a vector");
    GT_CHECK(max_over(*world, std::vector<int64_t>{}).empty(), "nothing");
    const Mixed mine{int64_t{r} << 40, {'a', static_cast<char>('0' + r)}};
    for (int root = 0; root < kRanks; ++root) {
      const Mixed got = broadcast_value(*world, mine, root);
      GT_CHECK(got.number == int64_t{root} << 40 && got.text[1] == '0' + root, "root ", root);
    }
    const std::vector<Mixed> all = gather_values(*world, mine);
    for (int k = 0; k < kRanks; ++k) {
      const Mixed& m = all[static_cast<size_t>(k)];
      GT_CHECK(m.number == int64_t{k} << 40 && m.text[1] == '0' + k, "gathered ", k);
    }
  };
  for (const std::string& error : suite::run_threads(kRanks, body)) CHECK(error == "");
}
