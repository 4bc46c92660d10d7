// Positions: rows to positions and back.
#include "kernels/core/positions.h"

#include <set>

#include "tests/support/test.h"

namespace gt::test {

TEST_CASE("positions: the ranks of a context hold each position of a sequence once, and find its row") {
  constexpr int64_t kLength = 48;
  for (const int64_t ranks : {1, 2, 3, 4}) {
    const int64_t chunk = kLength / (2 * ranks);
    std::set<int64_t> found;
    for (int64_t rank = 0; rank < ranks; ++rank) {  // chunk `rank` from the front and from the back
      const Positions p{.seq = 2 * chunk, .first = rank * chunk, .run = chunk, .gap = 2 * (ranks - 1 - rank) * chunk};
      for (int64_t row = 0; row < 2 * p.seq; ++row) {
        const int64_t position = p.position(row);
        CHECK(p.row_at(position) == row % p.seq);
        CHECK(position < p.end(2 * p.seq));
        if (row < p.seq) CHECK(found.insert(position).second);
      }
      CHECK(p.position(chunk) == (2 * ranks - 1 - rank) * chunk);
      CHECK(p.row_at(kLength) == -1);
      CHECK(p.row_at(rank * chunk - 1) == -1);
      if (p.gap > 0) CHECK(p.row_at(p.first + chunk) == -1);
    }
    CHECK(*found.rbegin() == kLength - 1);
    CHECK(static_cast<int64_t>(found.size()) == kLength);
  }
}

TEST_CASE("positions: rows from the middle of a sequence, and of documents") {
  const Positions p{.seq = 6, .first_row = 4, .first = 10};
  CHECK(p.position(0) == 14);
  CHECK(p.position(2) == 10);
  CHECK(p.end(1) == 15);
  CHECK(p.end(2) == 16);
  CHECK(p.row_at(9) == -1);
  CHECK(p.row_at(15) == 5);
  const int32_t documents[] = {3, 0};
  CHECK(p.position(1, documents) == 0);
}

}  // namespace gt::test
