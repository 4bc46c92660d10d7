// llm.c's window order: golden values from its own loader (llmc/dataloader.h) on files of the same sizes.
#include "data/samples/llmc_order.h"

#include <map>
#include <numeric>
#include <set>

#include "data/samples/cursor.h"
#include "data/samples/dataset.h"
#include "data/samples/loader.h"
#include "tests/data/support.h"

using namespace gt;
using namespace gt::test;

namespace {

using Numbers = std::vector<int32_t>;

// First tokens of llm.c's microbatches of ranks 0 and 1: B 2, T 3, two processes, files of 70, 49 and 120 tokens, token
// k of file f is 1000 (f + 1) + k. More than three epochs.
const std::vector<Numbers> kShuffled{
    {3036, 3024, 3012, 3096, 3000, 3060, 3048, 3072, 3084, 2036, 2000, 2012, 2024, 1000,
     1024, 1012, 1036, 1048, 3072, 3024, 3096, 3036, 3084, 3012, 3000, 3060, 3048, 1024,
     1000, 1012, 1036, 1048, 2036, 2024, 2012, 2000, 1024, 1036, 1012, 1000},
    {3078, 3066, 3090, 3042, 3006, 3102, 3054, 3018, 3030, 1054, 1042, 1006, 1030, 1018,
     2006, 2030, 2018, 2042, 1006, 1018, 1030, 1054, 1042, 3078, 3066, 3090, 3102, 3018,
     3006, 3042, 3030, 3054, 2018, 2030, 2042, 2006, 2030, 2006, 2018, 2042}};
const std::vector<Numbers> kPlain{{1000, 1012, 1024, 1036, 1048, 2000, 2012, 2024, 2036, 3000, 3012, 3024,
                                   3036, 3048, 3060, 3072, 3084, 3096, 1000, 1012, 1024, 1036, 1048, 2000},
                                  {1006, 1018, 1030, 1042, 1054, 2006, 2018, 2030, 2042, 3006, 3018, 3030,
                                   3042, 3054, 3066, 3078, 3090, 3102, 1006, 1018, 1030, 1042, 1054, 2006}};

void write_shards(const TempDir& dir) {
  int32_t base = 0;
  for (const int32_t n : {70, 49, 120}) {
    base += 1000;
    Numbers header(256), ids(static_cast<size_t>(n));
    header[0] = 20240520, header[1] = 1, header[2] = n;
    std::iota(ids.begin(), ids.end(), base);
    std::string packed(ids.size() * 2, '\0');
    pack_tokens(ids, TokenType::kU16, reinterpret_cast<uint8_t*>(packed.data()));
    write_file(dir / "t_" + std::to_string(base) + ".bin",
               std::string(reinterpret_cast<const char*>(header.data()), 1024) + packed);
  }
}

DatasetOptions options_for(const TempDir& dir, SampleOrder order, int64_t dp, int64_t micro_batch) {
  DatasetOptions o;
  o.sources = {{dir / "t_*.bin", 0}};
  o.whole = true;
  o.seq = 3;
  o.order = order;
  o.dp = dp;
  o.micro_batch = micro_batch;
  return o;
}

}  // namespace

TEST_CASE("the order of one file's windows is llm.c's for ranks 0 and 1") {
  const std::map<int64_t, Numbers> golden{{0, {1, 3, 9, 7, 6, 0, 8, 4, 5, 2, 9, 8}},
                                          {1, {2, 6, 9, 4, 0, 1, 5, 7, 3, 8}}};
  for (const auto& [rank, windows] : golden) {
    LlmcOrder order({161}, {.seq = 4, .micro_batch = 2, .dp = 2, .shuffled = true});  // ten windows of 16
    CHECK(order.size() == 40);
    for (size_t k = 0; k < windows.size(); ++k) {
      const auto position = order.find(static_cast<int64_t>(k) * 4 + rank * 2 + 1);
      CHECK(position.token == windows[k] * 16 + rank * 8 + 4);
    }
  }
}

TEST_CASE("microbatches of every rank, over files and epochs, are llm.c's, from any start sample") {
  TempDir dir;
  write_shards(dir);
  for (const SampleOrder kind : {SampleOrder::kLlmc, SampleOrder::kLlmcShuffled}) {
    const auto& golden = kind == SampleOrder::kLlmc ? kPlain : kShuffled;
    const auto whole = open_dataset(options_for(dir, kind, 2, 2));
    CHECK(whole->size() == 18 * 4);
    Numbers s(4);
    const auto expect = [&](const Dataset& d, size_t rank, size_t k) {
      for (int32_t row = 0; row < 2; ++row) {
        d.fetch(static_cast<int64_t>(4 * k + 2 * rank) + row, s);
        const int32_t first = golden[rank][k] + 3 * row;
        CHECK(s == Numbers{first, first + 1, first + 2, first + 3});
      }
    };
    for (size_t rank = 0; rank < 2; ++rank) {
      for (size_t k = 0; k < golden[rank].size(); ++k) expect(*whole, rank, k);
      for (size_t k = golden[rank].size(); k-- > 0;) expect(*whole, rank, k);  // backwards
      for (const size_t k : {size_t{0}, size_t{9}, size_t{20}})
        expect(*open_dataset(options_for(dir, kind, 2, 2)), rank, k);
    }
  }
}

TEST_CASE("the loader returns llm.c's microbatches, accumulated or not, resumed at any step") {
  TempDir dir;
  write_shards(dir);
  const auto d = open_dataset(options_for(dir, SampleOrder::kLlmcShuffled, 2, 2));
  for (int rank = 0; rank < 2; ++rank)
    for (int accumulate : {1, 2})
      for (int first : {0, 1, 5}) {
        LoaderConfig c{.seq = 3, .micro_batch = 2, .microbatches = accumulate, .dp_rank = rank, .dp_size = 2};
        c.first_sample = int64_t{first} * 4 * accumulate;
        Loader loader(*d, c, {}, host_device(), {});
        size_t at = static_cast<size_t>(first * accumulate);
        for (int step = 0; step < 6; ++step)
          for (const MicroBatch& mb : loader.next())
            CHECK(*mb.tokens.as<int32_t>() == kShuffled[static_cast<size_t>(rank)][at++]);
      }
}

TEST_CASE("llm.c's orders refuse other formats, blends, small files and other layouts") {
  TempDir dir;
  write_shards(dir);
  write_fixture(dir / "pair");
  auto o = options_for(dir, SampleOrder::kLlmc, 2, 2);
  o.sources = {{dir / "pair", 0}};
  expect_error(Exit::kUsage,
               {dir / "pair", "data.order llmc", "llm.c's token files", "Megatron's .bin + .idx", "epoch"},
               [&] { open_dataset(o); });
  o.sources = {{dir / "t_1000", 0}, {dir / "t_2000", 0}};
  expect_error(Exit::kUsage, {"data.order llmc", "2 datasets", "a pattern"}, [&] { open_dataset(o); });
  expect_error(Exit::kUsage, {"t_*.bin: data.order llmc: file 2 of 3 has 49 tokens", "needs 61", "smaller"},
               [&] { open_dataset(options_for(dir, SampleOrder::kLlmcShuffled, 5, 4)); });
  const auto cursor = [&](SampleOrder order, int64_t dp, int64_t b) {
    return open_dataset(options_for(dir, order, dp, b))->cursor(8);
  };
  const DataCursor saved = cursor(SampleOrder::kLlmcShuffled, 2, 2);
  CHECK(differences(saved, cursor(SampleOrder::kLlmcShuffled, 2, 2)).empty());
  for (const DataCursor& now : {cursor(SampleOrder::kLlmcShuffled, 1, 4), cursor(SampleOrder::kLlmc, 2, 2)})
    expect_error(Exit::kUsage, {"data.order: the checkpoint has llmc_shuffled of dp 2, micro_batch 2", "allow_change"},
                 [&] { require_same_stream(saved, now, false); });
  CHECK(data_cursor_from_json(to_json(saved)) == saved);
}
