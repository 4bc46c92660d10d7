#include <cmath>
#include <numeric>

#include "data/samples/blend.h"
#include "data/samples/mt19937_numpy.h"
#include "data/samples/sample_order.h"
#include "kernels/core/hash/sha256.h"
#include "tests/data/support.h"

using namespace gt;
using namespace gt::test;

namespace {
using Ints = std::vector<int64_t>;
template <class T>
Ints ints(const T& v) {
  return Ints(v.begin(), v.end());
}
Lengths lengths_of(const std::vector<int32_t>& v) { return {v.data(), 0, static_cast<int64_t>(v.size())}; }
const std::vector<int32_t> kFixture{5, 3, 7};
}  // namespace

TEST_CASE("SHA-256 returns the digests of FIPS 180-4 for any split of the input") {
  CHECK(sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const std::string million(1'000'000, 'a');
  for (size_t cut : {1u, 55u, 56u, 63u, 64u, 65u, 999u}) {
    Sha256 h;
    for (size_t at = 0; at < million.size(); at += cut) h.update(std::string_view(million).substr(at, cut));
    const auto d = h.finish();
    CHECK(to_hex(d.data(), d.size()) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  }
}

TEST_CASE("the generator equals numpy's RandomState") {
  NumpyShuffle raw(1234);
  CHECK(raw.next() == 822569775u);
  CHECK(raw.next() == 2137449171u);
  CHECK(raw.next() == 2671936806u);
  CHECK(raw.next() == 3512589365u);
  std::vector<int> a(10);
  std::iota(a.begin(), a.end(), 0);
  NumpyShuffle(1234).shuffle(std::span(a));
  CHECK(a == std::vector<int>{7, 2, 9, 1, 0, 8, 4, 5, 6, 3});
  NumpyShuffle again(1234);
  CHECK(again.below(0) == 0);
  CHECK(again.next() == 822569775u);  // below(0) drew nothing
}

TEST_CASE("splits are computed from running sums, rounded half to even") {
  CHECK(split_bounds("98,2", 17) == Ints{0, 17, 17});
  CHECK(split_bounds("969,30,1", 1000) == Ints{0, 969, 999, 1000});
  CHECK(split_bounds("1,1", 5) == Ints{0, 2, 5});  // 2.5 goes to 2
  CHECK(split_bounds("1,1", 7) == Ints{0, 4, 7});  // 3.5 goes to 4
  CHECK(split_bounds("1", 3) == Ints{0, 3});
  expect_error(Exit::kUsage, {"data.split", "share 2", "\"x\""}, [] { split_bounds("9,x", 10); });
  expect_error(Exit::kUsage, {"data.split", "share 1", "\"-1\""}, [] { split_bounds("-1,2", 10); });
  expect_error(Exit::kUsage, {"data.split", "sum up to 0"}, [] { split_bounds("0,0", 10); });
  expect_error(Exit::kUsage, {"data.split", "share 2"}, [] { split_bounds("1,", 10); });
}

TEST_CASE("an epoch of the small fixture") {
  const Order o = build_epoch(lengths_of(kFixture), 4, 1234);
  CHECK(ints(o.documents) == Ints{0, 1, 2});
  CHECK(ints(o.positions) == Ints{0, 0, 0, 4, 2, 0, 2, 4});
  CHECK(ints(o.shuffle) == Ints{1, 2, 0});
  CHECK(epoch_seed(1234, 1) == 2654437003u);
  const Order next = build_epoch(lengths_of(kFixture), 4, epoch_seed(1234, 1));
  CHECK(ints(next.documents) == Ints{2, 0, 1});
  CHECK(ints(next.positions) == Ints{0, 0, 0, 4, 1, 1, 2, 0});
  CHECK(ints(next.shuffle) == Ints{1, 0, 2});
}

TEST_CASE("an epoch of 4000 documents has the published SHA-256") {
  std::vector<int32_t> lengths;
  for (uint64_t i = 0, x = 1; i < 4000; ++i) {
    x = (1103515245 * x + 12345) % (uint64_t{1} << 31);
    lengths.push_back(static_cast<int32_t>(1 + (x >> 8) % 900));
  }
  CHECK(std::vector<int32_t>(lengths.begin(), lengths.begin() + 4) == std::vector<int32_t>{555, 25, 757, 196});
  CHECK(lengths_of(lengths).total() == 1788781);
  const Order o = build_epoch(lengths_of(lengths), 128, 1234);
  REQUIRE(o.shuffle.size() == 13974);
  CHECK(Ints(o.documents.begin(), o.documents.begin() + 5) == Ints{1760, 3399, 979, 3431, 3557});
  CHECK(Ints(o.shuffle.begin(), o.shuffle.begin() + 5) == Ints{11515, 5871, 11737, 5546, 1788});
  std::vector<int32_t> rows;
  for (size_t k = 0; k < 10000; ++k) {
    const size_t row = o.shuffle[k];
    rows.push_back(o.documents[o.positions[2 * row]]);
    rows.push_back(static_cast<int32_t>(o.positions[2 * row + 1]));
  }
  CHECK(sha256_hex({reinterpret_cast<const char*>(rows.data()), rows.size() * 4}) ==
        "0a7ed39248de9891d66c50d7e6bfb376b1285cede4fc1c545fa2604034efc3c6");
}

TEST_CASE("Megatron's order for a fixed number of samples") {
  const MegatronPlan p = plan_megatron(15, 4, 8), whole = plan_megatron(16, 4, 4);
  CHECK(whole.epochs == 2);  // the last target needs one token more than an epoch has
  CHECK(whole.samples >= 4);
  CHECK(p.epochs == 3);
  CHECK(p.samples == 11);
  CHECK(p.apart);
  const Order o = build_megatron(lengths_of(kFixture), 4, 1234, 8);
  CHECK(ints(o.documents) == Ints{2, 1, 2, 0, 1, 0, 0, 2, 1});
  CHECK(ints(o.shuffle) == Ints{6, 4, 0, 5, 3, 2, 1, 8, 7, 10, 9});
  const Order one = build_megatron(lengths_of(kFixture), 4, 1234, 3),
              epoch = build_epoch(lengths_of(kFixture), 4, 1234);
  CHECK(one.documents == epoch.documents);
  CHECK(one.positions == epoch.positions);
  CHECK(one.shuffle == epoch.shuffle);
  expect_error(Exit::kUsage, {"megatron", "number of samples", "found 0"}, [] { plan_megatron(15, 4, 0); });
}

TEST_CASE("empty documents are skipped and the tail is dropped") {
  const std::vector<int32_t> lengths{0, 5, 0, 0, 4, 0};
  const Order o = build_epoch(lengths_of(lengths), 4, 3);
  REQUIRE(o.shuffle.size() == 2);
  for (uint32_t row : o.shuffle) {  // seq + 1 tokens exist from every start
    int64_t left = 5;
    size_t entry = o.positions[2 * row];
    for (int64_t offset = o.positions[2 * row + 1]; left > 0; ++entry, offset = 0) {
      REQUIRE(entry < o.documents.size());
      left -= std::min<int64_t>(left, lengths[static_cast<size_t>(o.documents[entry])] - offset);
    }
  }
}

TEST_CASE("the sequential order reads every token") {
  std::vector<int32_t> lengths;
  std::mt19937 r(5);
  for (int i = 0; i < 2000; ++i) lengths.push_back(static_cast<int32_t>(r() % 4));
  const SequentialOrder o(lengths_of(lengths));
  int64_t token = 0;
  bool same = true;
  for (int64_t s = 0; s < 2000; ++s)
    for (int64_t k = 0; k < lengths[static_cast<size_t>(s)]; ++k, ++token) {
      const auto p = o.find(token);
      same = same && p.sequence == s && p.offset == k;
    }
  CHECK(same);
  CHECK(token == o.tokens());
}

TEST_CASE("a blend follows its weights and reaches any ordinal in any order") {
  const std::vector<double> weights{5, 3, 2};
  Blend b(weights);
  Ints datasets, samples;
  for (int64_t k = 0; k < 12; ++k) {
    const auto d = b.at(k);
    datasets.push_back(d.dataset);
    samples.push_back(d.sample);
  }
  CHECK(datasets == Ints{0, 1, 2, 0, 1, 0, 2, 0, 1, 0, 0, 1});
  CHECK(samples == Ints{0, 0, 0, 1, 1, 2, 1, 3, 2, 4, 5, 3});
  std::vector<Blend::Draw> all;
  for (int64_t k = 0; k < 200000; ++k) all.push_back(b.at(k));
  Blend fresh(weights);
  std::mt19937 r(3);
  for (int i = 0; i < 50; ++i) {
    const int64_t k = r() % 200000;
    const auto d = fresh.at(k);
    CHECK(d.dataset == all[static_cast<size_t>(k)].dataset);
    CHECK(d.sample == all[static_cast<size_t>(k)].sample);
  }
  const auto counts = fresh.counts_before(200000);
  CHECK(std::abs(counts[0] - 100000) <= 1);
  CHECK(std::accumulate(counts.begin(), counts.end(), int64_t{0}) == 200000);
}

TEST_CASE("data.train as words: paths, or weights and paths") {
  std::vector<std::string> warnings;
  const auto plain = parse_sources({"a", "b"}, &warnings);
  CHECK((plain.size() == 2 && plain[1].path == "b" && plain[1].weight == 0));
  const auto weighted = parse_sources({"0.3", "a", "2", "b", "1", "a"}, &warnings);
  CHECK((weighted.size() == 3 && weighted[0].weight == 0.3 && weighted[1].path == "b"));
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("positions 1 and 3") != std::string::npos);
  expect_error(Exit::kUsage, {"position 3", "no partner"}, [] { parse_sources({"1", "a", "2"}, nullptr); });
  expect_error(Exit::kUsage, {"position 3", "above 0", "\"0\""}, [] { parse_sources({"1", "a", "0", "b"}, nullptr); });
  expect_error(Exit::kUsage, {"position 1", "nan"}, [] { parse_sources({"nan", "a"}, nullptr); });
  expect_error(Exit::kUsage, {"position 3", "\"b\""}, [] { parse_sources({"1", "a", "b", "c"}, nullptr); });
  expect_error(Exit::kUsage, {"found nothing"}, [] { parse_sources({}, nullptr); });
}
