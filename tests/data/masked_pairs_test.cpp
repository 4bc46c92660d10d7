#include "data/samples/masked_pairs.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "data/samples/dataset.h"
#include "data/samples/permutation.h"
#include "data/tokens/token_meta.h"
#include "tests/data/support.h"

using namespace gt;
using namespace gt::test;

namespace {

using Row = std::vector<int32_t>;

constexpr SpecialTokens kSpecial{.cls = 1, .sep = 2, .pad = 0, .mask = 3};

// Documents of 4 + 7 i tokens; token k of document i is 100 + 100 i + k, and 99 ends each.
DatasetOptions documents(const std::string& prefix, int count, MaskingOptions masking, int64_t seq = 16) {
  std::vector<std::vector<int32_t>> all;
  for (int i = 0; i < count; ++i) {
    all.emplace_back();
    for (int k = 0; k < 4 + 7 * i; ++k) all.back().push_back(100 + 100 * i + k);
    all.back().push_back(99);
  }
  write_documents(prefix, all);
  write_token_meta(prefix + ".meta.json", {.vocab = 2000, .eod = 99});
  masking.special = kSpecial, masking.vocab = 2000;
  DatasetOptions o;
  o.sources = {{prefix, 0}};
  o.whole = true, o.seq = seq, o.vocab = 2000, o.masking = masking;
  return o;
}

Row row_of(const Dataset& d, int64_t n) {
  Row r(static_cast<size_t>(d.row()), -7);
  d.fetch(n, r);
  return r;
}

// The two sentences before anything was hidden.
struct Pair {
  std::vector<int32_t> a, b;
  int32_t label, length;
};
Pair pair_of(Row row, int64_t seq) {
  const PairRow x{row, seq};
  Pair p{{}, {}, x.label(), x.length()};
  for (int64_t i = 0; i < x.length(); ++i) {
    const auto k = static_cast<size_t>(i);
    const int32_t token = x.targets()[k] >= 0 ? x.targets()[k] : x.tokens()[k];
    if (token == kSpecial.cls || token == kSpecial.sep) continue;
    (x.types()[k] == 0 ? p.a : p.b).push_back(token);
  }
  return p;
}

bool follows(const std::vector<int32_t>& v) {
  return std::adjacent_find(v.begin(), v.end(), [](int32_t a, int32_t b) { return b != a + 1; }) == v.end();
}

}  // namespace

TEST_CASE("a pair is two runs of one document, the second behind the first, or runs of two documents") {
  TempDir dir;
  const auto d = open_dataset(documents(dir / "f", 9, {}));
  REQUIRE(d->pairs());
  CHECK(d->row() == 3 * 16 + 2);
  int unrelated = 0, shorter = 0;
  const int64_t count = 40 * d->size();
  for (int64_t n = 0; n < count; ++n) {
    INFO("sample " << n);
    Row row = row_of(*d, n);
    const PairRow x{row, 16};
    const Pair p = pair_of(row, 16);
    REQUIRE((!p.a.empty() && !p.b.empty()));
    REQUIRE(p.length == static_cast<int32_t>(p.a.size() + p.b.size() + 3));
    REQUIRE((follows(p.a) && follows(p.b)));
    REQUIRE((p.b.front() == p.a.back() + 1) == (p.label == 0));
    REQUIRE((p.label == 0 || p.a.front() / 100 != p.b.front() / 100));
    REQUIRE(std::find(row.begin(), row.begin() + 16, 99) == row.begin() + 16);  // what ends documents is in none
    REQUIRE(x.tokens()[0] == kSpecial.cls);
    REQUIRE(x.tokens()[p.a.size() + 1] == kSpecial.sep);
    REQUIRE(x.tokens()[static_cast<size_t>(p.length) - 1] == kSpecial.sep);
    for (size_t k = 0; k < 16; ++k) {
      const bool real = static_cast<int32_t>(k) < p.length;
      REQUIRE(x.types()[k] == (real && k >= p.a.size() + 2 ? 1 : 0));
      if (!real) REQUIRE((x.tokens()[k] == kSpecial.pad && x.targets()[k] == -1));
    }
    unrelated += p.label;
    shorter += p.length < 16;
  }
  CHECK(unrelated > 0.42 * static_cast<double>(count));
  CHECK(unrelated < 0.58 * static_cast<double>(count));
  CHECK(shorter > count / 20);
}

TEST_CASE("of the positions that are chosen 80 % are hidden, 10 % random and 10 % kept, and never more than the most") {
  std::vector<int32_t> a(60), b(65);
  for (size_t k = 0; k < a.size(); ++k) a[k] = 500 + static_cast<int32_t>(k);
  for (size_t k = 0; k < b.size(); ++k) b[k] = 700 + static_cast<int32_t>(k);
  double chosen = 0, hidden = 0, kept = 0;
  for (int64_t n = 0; n < 1000; ++n) {
    Row row(static_cast<size_t>(PairRow::width(128)));
    SampleDraws draws(7, n);
    make_pair({.max_predictions = 128, .vocab = 2000}, a, b, false, draws, {row, 128});
    const PairRow x{row, 128};
    int here = 0;
    for (size_t k = 0; k < 128; ++k) {
      if (x.targets()[k] < 0) continue;
      REQUIRE(x.targets()[k] >= 500);  // special tokens are not
      ++here;
      hidden += x.tokens()[k] == kSpecial.mask;
      kept += x.tokens()[k] == x.targets()[k];
    }
    REQUIRE(here == 19);  // 0.15 * 128
    chosen += here;
    SampleDraws again(7, n);
    Row few(row.size());
    make_pair({.max_predictions = 5, .vocab = 2000}, a, b, false, again, {few, 128});
    const auto targets = PairRow{few, 128}.targets();
    REQUIRE(std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t >= 0; }) == 5);
  }
  CHECK(std::fabs(hidden / chosen - 0.8) < 0.015);
  CHECK(std::fabs(kept / chosen - 0.1) < 0.01);
}

TEST_CASE("with whole words all pieces of a word are chosen, or none") {
  MaskingOptions o{.mask_prob = 0.3, .whole_words = true, .vocab = 2000};
  o.word_starts.assign(2000, 0);
  for (size_t k = 0; k < 2000; k += 3) o.word_starts[k] = 1;  // words of three pieces
  std::vector<int32_t> a(30), b(30);
  for (size_t k = 0; k < 30; ++k) a[k] = 600 + static_cast<int32_t>(k), b[k] = 900 + static_cast<int32_t>(k);
  int words = 0;
  for (int64_t n = 0; n < 200; ++n) {
    Row row(static_cast<size_t>(PairRow::width(64)));
    SampleDraws draws(9, n);
    make_pair(o, a, b, true, draws, {row, 64});
    const auto t = PairRow{row, 64}.targets();
    for (size_t first : {size_t{1}, size_t{32}})
      for (size_t k = first; k < first + 30; k += 3) {
        REQUIRE((t[k] >= 0) == (t[k + 1] >= 0));
        REQUIRE((t[k] >= 0) == (t[k + 2] >= 0));
        words += t[k] >= 0;
      }
  }
  CHECK(words == 200 * 6);  // 19 of 63 positions: 6 words
}

TEST_CASE("every epoch has each window once, in another order, and a sample is the same whenever it is read") {
  TempDir dir;
  const auto options = documents(dir / "f", 9, {});
  const auto d = open_dataset(options), other = open_dataset(options);
  // Windows of 13 of 4 + 7 i tokens; a rest of one token is none.
  int64_t windows = 0;
  for (int64_t i = 0; i < 9; ++i) windows += (4 + 7 * i) / 13 + ((4 + 7 * i) % 13 >= 2);
  REQUIRE(d->size() == windows);
  std::vector<std::set<std::pair<int64_t, int64_t>>> epochs(2);
  std::vector<std::vector<int64_t>> order(2);
  for (int64_t n = 2 * windows - 1; n >= 0; --n) {
    CHECK(row_of(*d, n) == row_of(*other, n));
    const auto p = d->position_of(n);
    epochs[static_cast<size_t>(n / windows)].insert({p.sequence, p.offset});
    order[static_cast<size_t>(n / windows)].push_back(p.sequence * 1000 + p.offset);
  }
  CHECK(static_cast<int64_t>(epochs[0].size()) == windows);
  CHECK(epochs[0] == epochs[1]);
  CHECK(order[0] != order[1]);
  CHECK(row_of(*d, 0) == row_of(*other, 0));
  auto seeded = options;
  seeded.seed = 99;
  CHECK(row_of(*open_dataset(seeded), 0) != row_of(*d, 0));
  auto changed = options;
  changed.masking->mask_prob = 0.3;
  CHECK_FALSE(differences(d->cursor(3), open_dataset(changed)->cursor(3)).empty());
  CHECK(differences(d->cursor(3), other->cursor(3)).empty());
}

TEST_CASE("one document alone is refused, and so are orders of other samples") {
  TempDir dir;
  auto o = documents(dir / "f", 3, {});
  o.order = SampleOrder::kMegatron, o.num_samples = 4;
  CHECK_THROWS_WITH(open_dataset(o), Catch::Contains("sentence pairs come in data.order epoch"));
  write_documents(dir / "one", {{10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27}});
  o.order = SampleOrder::kEpoch, o.sources = {{dir / "one", 0}};
  CHECK_THROWS_WITH(open_dataset(o), Catch::Contains("sentence pairs need two documents or more, 1 found"));
}

TEST_CASE("a permutation is one, for every size, and another for every key") {
  for (const int64_t n : {1, 2, 3, 7, 64, 65, 1000, 4097}) {
    const Permutation p(5, n);
    std::set<int64_t> values;
    for (int64_t k = 0; k < n; ++k) {
      const int64_t x = p(k);
      REQUIRE((x >= 0 && x < n));
      values.insert(x);
    }
    CHECK(static_cast<int64_t>(values.size()) == n);
  }
  const Permutation a(5, 1000), b(6, 1000);
  int same = 0, fixed = 0;
  for (int64_t k = 0; k < 1000; ++k) same += a(k) == b(k), fixed += a(k) == k;
  CHECK(same < 10);
  CHECK(fixed < 10);
}
