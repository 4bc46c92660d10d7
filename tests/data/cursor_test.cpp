#include "data/samples/cursor.h"

#include "tests/data/support.h"

using namespace gt;
using namespace gt::test;

namespace {
DataCursor example() {
  return {.consumed_samples = 640,
          .skip_windows = {{64, 128}},
          .seed = 18446744073709551615ull,
          .order = "megatron",
          .seq = 1024,
          .split = "98,2",
          .num_samples = 9000,
          .sources = {{"a/b", 1'000'000'000'000, "ff00", 0.1 + 0.2, 2, 17}, {"c", 4, "", 0.7, 0, 1}}};
}
}  // namespace

TEST_CASE("a cursor round-trips through JSON") {
  const DataCursor c = example();
  CHECK(data_cursor_from_json(to_json(c)) == c);
  DataCursor plain = c;
  plain.num_samples = 0;
  plain.order = "epoch";
  CHECK(to_json(plain).find("num_samples") == std::string::npos);
  CHECK(data_cursor_from_json(to_json(plain)) == plain);
}

TEST_CASE("a broken cursor names the key") {
  expect_error(Exit::kUsage, {"consumed_samples"}, [] { data_cursor_from_json("{}"); });
  expect_error(Exit::kUsage, {"seed"}, [] { data_cursor_from_json("{\"consumed_samples\": 3, \"data\": {}}"); });
  expect_error(Exit::kUsage, {"found -3"}, [] {
    data_cursor_from_json(
        "{\"consumed_samples\": -3, \"data\": "
        "{\"seed\":1,\"order\":\"epoch\",\"seq\":4,\"split\":\"\",\"sources\":[]}}");
  });
}

TEST_CASE("all differences of two streams are listed together with the remedy") {
  const DataCursor saved = example();
  DataCursor now = saved;
  CHECK(differences(saved, now).empty());
  now.consumed_samples = 0;
  now.skip_windows.clear();
  now.sources[0].path = "moved/b";
  now.sources[0].epoch = 0;
  CHECK(differences(saved, now).empty());  // positions and names are not differences
  now.seed = 5;
  now.seq = 512;
  now.sources[1].idx_sha256 = "aa";
  now.sources[1].weight = 0.5;
  CHECK(differences(saved, now).size() == 4);
  expect_error(Exit::kUsage,
               {"data.seed", "this run has 5", "data.seq", "dataset 2 (c) SHA-256", "share", "--data.allow_change"},
               [&] { require_same_stream(saved, now, false); });
  require_same_stream(saved, now, true);
  DataCursor moved = saved;
  moved.sources[0].cursor = 18;  // same ordinal, other position: the files have changed
  CHECK(differences(saved, moved).size() == 1);
}
