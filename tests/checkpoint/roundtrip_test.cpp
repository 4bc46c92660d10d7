// What one layout wrote, every other layout reads bit for bit.
#include <algorithm>
#include <filesystem>

#include "tests/checkpoint/support.h"
#include "tests/support/test.h"

namespace gt::ckpt {
namespace {

const Layout kLayouts[] = {{1, 1, 1, 1}, {2, 1, 2, 1}, {4, 1, 1, 1}, {1, 1, 4, 2}, {1, 2, 2, 0}, {2, 2, 1, 1}, {1, 1, 3, 1}, {1, 3, 1, 1}};

std::string text(const Layout& l) { return cat("tp", l.tp, " pp", l.pp, " dp", l.dp, " zero", l.zero); }

TEST_CASE("any layout reads what any other wrote, bit for bit") {
  for (const Layout& from : kLayouts) {
    const TempDir dir;
    save(dir.path, from, 7);
    for (const Layout& to : kLayouts) {
      INFO(text(from) << " -> " << text(to));
      CHECK(load_and_compare(dir.path, to, 7) == "");
    }
  }
}

}  // namespace
}  // namespace gt::ckpt
