// All-to-alls by what each rank sends to each other, for the communication suite.
#pragma once
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace gt::suite {

// An all_to_all among N ranks: what rank i sends to rank j.
struct Exchange {
  std::string name;
  std::vector<std::vector<int64_t>> rows;  // [i][j]
  int64_t width = 1;

  int64_t total(int i) const { return width * std::accumulate(rows[at(i)].begin(), rows[at(i)].end(), int64_t{0}); }
  std::vector<int64_t> sends(int i) const { return rows[at(i)]; }
  std::vector<int64_t> receives(int j) const {
    std::vector<int64_t> out;
    for (const auto& r : rows) out.push_back(r[at(j)]);
    return out;
  }
  static size_t at(int i) { return static_cast<size_t>(i); }
};

inline Exchange exchange_by(std::string name, int N, int64_t width, const std::function<int64_t(int, int)>& rows) {
  Exchange e{std::move(name), {}, width};
  for (int i = 0; i < N; ++i) {
    auto& row = e.rows.emplace_back();
    for (int j = 0; j < N; ++j) row.push_back(rows(i, j));
  }
  return e;
}

// Zero, own, one-sided and uneven parts.
inline std::vector<Exchange> exchanges(int N) {
  return {exchange_by("uneven", N, 1, [&](int i, int j) { return 7 * i + 3 * j + 1; }),
          exchange_by("nothing", N, 3, [](int, int) { return 0; }),
          exchange_by("own parts alone", N, 2, [](int i, int j) { return i == j ? 5 + i : 0; }),
          exchange_by("no own parts", N, 5, [](int i, int j) { return i == j ? 0 : 2 + i; }),
          exchange_by("all to the last", N, 1, [&](int i, int j) { return j == N - 1 ? 100 + i : 0; }),
          exchange_by("all of the first", N, 4, [](int i, int j) { return i == 0 ? 9 + j : 0; }),
          exchange_by("rows of a model", N, 65, [](int i, int j) { return (i * 5 + j * 11) % 13; })};
}

}  // namespace gt::suite
