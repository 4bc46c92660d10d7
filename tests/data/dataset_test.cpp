#include "data/samples/dataset.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <numeric>
#include <set>
#include <thread>

#include "data/tokens/index_store.h"
#include "data/tokens/token_meta.h"
#include "kernels/core/rng.h"
#include "tests/data/support.h"

using namespace gt;
using namespace gt::test;

namespace {
using Sample = std::vector<int32_t>;
Sample sample_of(const Dataset& d, int64_t n) {
  Sample s(static_cast<size_t>(d.seq() + 1));
  d.fetch(n, s);
  return s;
}
DatasetOptions options_for(const std::vector<DataSource>& sources, int64_t seq) {
  DatasetOptions o;
  o.sources = sources;
  o.whole = true;
  o.seq = seq;
  return o;
}
}  // namespace

TEST_CASE("samples of the fixture are in the published order, epoch after epoch") {
  TempDir dir;
  write_fixture(dir / "f");
  const auto d = open_dataset(options_for({{dir / "f", 0}}, 4));
  CHECK(d->size() == 3);
  CHECK(sample_of(*d, 0) == Sample{14, 20, 21, 22, 30});
  CHECK(sample_of(*d, 1) == Sample{30, 31, 32, 33, 34});
  CHECK(sample_of(*d, 2) == Sample{10, 11, 12, 13, 14});
  // epoch 1: documents 2 0 1, rows 1 0 2 of (0,0) (0,4) (1,1) (2,0)
  CHECK(sample_of(*d, 3) == Sample{34, 35, 36, 10, 11});
  CHECK(sample_of(*d, 4) == Sample{30, 31, 32, 33, 34});
  CHECK(sample_of(*d, 5) == Sample{11, 12, 13, 14, 20});
  CHECK(d->position_of(3).sequence == 2);
  CHECK(d->position_of(3).offset == 4);
}

TEST_CASE("the sequential order walks the concatenation and wraps") {
  TempDir dir;
  write_fixture(dir / "f");
  auto o = options_for({{dir / "f", 0}}, 4);
  o.order = SampleOrder::kSequential;
  const auto d = open_dataset(o);
  CHECK(sample_of(*d, 0) == Sample{10, 11, 12, 13, 14});
  CHECK(sample_of(*d, 1) == Sample{14, 20, 21, 22, 30});
  CHECK(sample_of(*d, 2) == Sample{30, 31, 32, 33, 34});
  CHECK(sample_of(*d, 3) == sample_of(*d, 0));
}

TEST_CASE("Megatron's order reads its fixed number of samples and cannot be extended") {
  TempDir dir;
  write_fixture(dir / "f");
  auto o = options_for({{dir / "f", 0}}, 4);
  o.order = SampleOrder::kMegatron;
  expect_error(Exit::kUsage, {"megatron", "steps x global batch"}, [&] { open_dataset(o); });
  o.num_samples = 8;
  const auto d = open_dataset(o);
  // documents 2 1 2 0 1 0 0 2 1; row 6 of the walk begins at token 24 of 30..36 20..22 30..36 10..14 20..22 10..14 ...
  CHECK(sample_of(*d, 0) == Sample{22, 10, 11, 12, 13});
  expect_error(Exit::kUsage, {"beyond the 11 samples", "data.order epoch"}, [&] { sample_of(*d, 11); });
}

TEST_CASE("every epoch reads every token once, from any thread, with or without a cache folder") {
  TempDir dir;
  const auto documents = made_up_documents(300);
  write_documents(dir / "f", documents);
  auto o = options_for({{dir / "f", 0}}, 16);
  const auto plain = open_dataset(o);
  o.cache_dir = dir / "cache";
  const auto first = open_dataset(o);
  CHECK(first->order_hash() == plain->order_hash());
  o.builder = false;  // uses the existing files
  const auto second = open_dataset(o);
  CHECK(second->order_hash() == plain->order_hash());
  const int64_t n = plain->size();
  std::vector<int64_t> drawn(1000, 0), have(1000, 0);
  for (const auto& doc : documents)
    for (int32_t t : doc) ++have[static_cast<size_t>(t)];
  bool same = true;
  for (int64_t k = 0; k < n; ++k) {
    const Sample s = sample_of(*plain, 2 * n + k);
    same = same && s == sample_of(*first, 2 * n + k) && s == sample_of(*second, 2 * n + k);
    for (size_t i = 0; i + 1 < s.size(); ++i) ++drawn[static_cast<size_t>(s[i])];
  }
  CHECK(same);
  int64_t missing = 0;  // only the tail shorter than a sample is dropped
  for (size_t t = 0; t < drawn.size(); ++t) {
    CHECK(drawn[t] <= have[t]);
    missing += have[t] - drawn[t];
  }
  CHECK(missing <= 16);

  std::vector<std::thread> threads;
  std::array<bool, 4> right{};
  for (size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      bool ok = true;
      for (int64_t k = 0; k < 200; ++k)
        ok = ok &&
             sample_of(*first, static_cast<int64_t>(t) * n + k) == sample_of(*plain, static_cast<int64_t>(t) * n + k);
      right[t] = ok;
    });
  for (auto& t : threads) t.join();
  CHECK((right[0] && right[1] && right[2] && right[3]));
}

TEST_CASE("a damaged index file is rebuilt, an unwritable folder is a warning") {
  TempDir dir;
  write_documents(dir / "f", made_up_documents(50));
  auto o = options_for({{dir / "f", 0}}, 8);
  o.cache_dir = dir / "cache";
  const uint64_t hash = open_dataset(o)->order_hash();
  int damaged = 0;
  for (const auto& e : std::filesystem::directory_iterator(dir / "cache"))
    if (e.path().extension() == ".gti") {
      std::string s = read_file(e.path());
      s[s.size() / 2] = static_cast<char>(s[s.size() / 2] ^ 64);
      write_file(e.path(), s);
      ++damaged;
    }
  CHECK(damaged == 1);
  CHECK(open_dataset(o)->order_hash() == hash);
  write_file(dir / "plain", "a file, not a folder");
  o.cache_dir = dir / "plain";
  std::vector<std::string> warnings;
  o.warn = [&](const std::string& w) { warnings.push_back(w); };
  CHECK(open_dataset(o)->order_hash() == hash);
  REQUIRE(!warnings.empty());
  CHECK(warnings[0].find("kept in memory") != std::string::npos);
}

namespace {

// A stored order as its parts, and back with the right hash and size: what a forger writes.
struct StoredTables {
  std::string header;
  std::vector<int32_t> documents;
  std::vector<uint32_t> positions, shuffle;
  explicit StoredTables(const std::string& file) {
    const std::string s = read_file(file);
    header = s.substr(0, 64);
    uint64_t sizes[2];
    std::memcpy(sizes, s.data() + 8, 16);
    documents.resize(sizes[0]), positions.resize(2 * (sizes[1] + 1)), shuffle.resize(sizes[1]);
    std::memcpy(documents.data(), s.data() + 64, 4 * sizes[0]);
    std::memcpy(positions.data(), s.data() + 64 + 4 * sizes[0], 4 * positions.size());
    std::memcpy(shuffle.data(), s.data() + 64 + 4 * sizes[0] + 4 * positions.size(), 4 * sizes[1]);
  }
  void write(const std::string& file) const {
    uint64_t numbers[3] = {documents.size(), shuffle.size(), 0};
    numbers[2] = XXH3_64bits(documents.data(), 4 * documents.size());
    numbers[2] = XXH3_64bits_withSeed(positions.data(), 4 * positions.size(), numbers[2]);
    numbers[2] = XXH3_64bits_withSeed(shuffle.data(), 4 * shuffle.size(), numbers[2]);
    std::string s = header;
    std::memcpy(s.data() + 8, numbers, 24);
    s.append(reinterpret_cast<const char*>(documents.data()), 4 * documents.size());
    s.append(reinterpret_cast<const char*>(positions.data()), 4 * positions.size());
    s.append(reinterpret_cast<const char*>(shuffle.data()), 4 * shuffle.size());
    write_file(file, s);
  }
};

std::string stored_file(const std::string& folder) {
  std::string found;
  for (const auto& e : std::filesystem::directory_iterator(folder))
    if (e.path().extension() == ".gti") found = e.path();
  return found;
}

struct Attack {
  const char* what;
  void (*change)(StoredTables&);
};
const Attack kAttacks[] = {
    {"all samples are sample 0", [](StoredTables& t) { std::fill(t.shuffle.begin(), t.shuffle.end(), 0); }},
    {"two samples are one", [](StoredTables& t) { t.shuffle[0] = t.shuffle[1]; }},
    {"a sample beyond the last", [](StoredTables& t) { t.shuffle[0] = static_cast<uint32_t>(t.shuffle.size()); }},
    {"a huge sample", [](StoredTables& t) { t.shuffle[0] = ~0u; }},
    {"documents out of range", [](StoredTables& t) { std::fill(t.documents.begin(), t.documents.end(), 1 << 30); }},
    {"a negative document", [](StoredTables& t) { t.documents[3] = -1; }},
    {"a document beyond the last", [](StoredTables& t) { t.documents[3] = 50; }},
    {"a document twice", [](StoredTables& t) { t.documents[3] = t.documents[4]; }},
    {"an entry beyond the last", [](StoredTables& t) { t.positions[8] = 1u << 30; }},
    {"an offset beyond its sequence", [](StoredTables& t) { t.positions[9] = 1u << 30; }},
    {"samples that overlap", [](StoredTables& t) { t.positions[9] += 1; }},
    {"one sample less", [](StoredTables& t) { t.shuffle.pop_back(), t.positions.resize(t.positions.size() - 2); }},
    {"the order of another key", [](StoredTables& t) { t.header[40] = static_cast<char>(t.header[40] ^ 1); }}};

}  // namespace

TEST_CASE("a stored order that is none of its sequences is not used, though its hash is right") {
  TempDir dir;
  write_documents(dir / "f", made_up_documents(50));
  auto o = options_for({{dir / "f", 0}}, 8);
  o.cache_dir = dir / "cache";
  for (const SampleOrder order : {SampleOrder::kEpoch, SampleOrder::kMegatron}) {
    std::filesystem::remove_all(dir / "cache");
    o.order = order;
    o.num_samples = 600;  // several epochs in one order
    const uint64_t hash = open_dataset(o)->order_hash();
    const std::string file = stored_file(dir / "cache");
    const StoredTables good(file);
    for (const Attack& attack : kAttacks) {
      INFO(name_of(order) << ": " << attack.what);
      StoredTables bad = good;
      attack.change(bad);
      bad.write(file);
      const auto d = open_dataset(o);
      CHECK(d->order_hash() == hash);
      for (int64_t k = 0; k < 20; ++k) sample_of(*d, k);
      CHECK(StoredTables(file).shuffle == good.shuffle);  // written anew
    }
  }
}

TEST_CASE("an order in a folder that others may write is built in memory, with one warning") {
  TempDir dir;
  write_documents(dir / "f", made_up_documents(50));
  auto o = options_for({{dir / "f", 0}}, 8);
  o.cache_dir = dir / "cache";
  const uint64_t hash = open_dataset(o)->order_hash();
  const std::string file = stored_file(dir / "cache");
  StoredTables swapped(file);
  std::swap(swapped.shuffle[0], swapped.shuffle[1]);  // an order, but another one
  swapped.write(file);
  CHECK(open_dataset(o)->order_hash() != hash);  // so only owner and mode are left to check
  std::vector<std::string> warnings;
  o.warn = [&](const std::string& w) { warnings.push_back(w); };
  using std::filesystem::perms;
  std::filesystem::permissions(dir / "cache", perms::group_write, std::filesystem::perm_options::add);
  const auto d = open_dataset(o);
  CHECK(d->order_hash() == hash);
  sample_of(*d, 0);
  REQUIRE(warnings.size() == 1);
  for (const char* part : {"cache is not used", "its group may write it", "chmod go-w", "kept in memory"})
    CHECK(warnings[0].find(part) != std::string::npos);
  std::filesystem::permissions(dir / "cache", perms::owner_all);
  std::filesystem::permissions(file, perms::others_write, std::filesystem::perm_options::add);
  CHECK(open_dataset(o)->order_hash() == hash);  // such a file is replaced by our own
  CHECK((std::filesystem::status(file).permissions() & perms::others_write) == perms::none);
  std::filesystem::remove(file);
  std::filesystem::create_symlink(dir / "elsewhere", file);
  CHECK(open_dataset(o)->order_hash() == hash);
  CHECK(std::filesystem::is_regular_file(std::filesystem::symlink_status(file)));
  CHECK_FALSE(std::filesystem::exists(dir / "elsewhere"));
}

TEST_CASE("splits are disjoint, and an empty one is an error with the remedy") {
  TempDir dir;
  std::vector<std::vector<int32_t>> documents;
  for (int i = 0; i < 20; ++i) documents.emplace_back(30, i);
  write_documents(dir / "f", documents);
  auto o = options_for({{dir / "f", 0}}, 8);
  o.whole = false;
  o.split = "80,20";
  std::set<int32_t> drawn[2];
  for (int part : {0, 1}) {
    o.part = part;
    const auto d = open_dataset(o);
    for (int64_t k = 0; k < d->size(); ++k)
      for (int32_t t : sample_of(*d, k)) drawn[part].insert(t);
  }
  CHECK(*drawn[0].rbegin() == 15);
  CHECK(*drawn[1].begin() == 16);
  o.split = "99,1";
  o.part = 1;
  expect_error(Exit::kUsage, {"valid needs at least 1 of 20 documents", "data.valid", "larger share"},
               [&] { open_dataset(o); });
  o.part = 2;
  expect_error(Exit::kUsage, {"no share for test"}, [&] { open_dataset(o); });
  o.part = 0;
  o.whole = true;
  o.seq = 600;
  expect_error(Exit::kUsage, {"600 tokens", "needs 601", "data.seq 599"}, [&] { open_dataset(o); });
}

TEST_CASE("a blend follows its weights and runs each dataset through its own epochs") {
  TempDir dir;
  write_documents(dir / "a", {Sample(101, 1)});
  write_documents(dir / "b", {Sample(41, 2)});
  auto o = options_for({{dir / "a", 0.7}, {dir / "b", 0.3}}, 10);
  const auto d = open_dataset(o);
  int64_t a = 0;
  for (int64_t k = 0; k < 1000; ++k) a += sample_of(*d, k)[0] == 1;
  CHECK(a == 700);
  const DataCursor c = d->cursor(1000);
  REQUIRE(c.sources.size() == 2);
  CHECK((c.sources[0].epoch == 70 && c.sources[0].cursor == 0));
  CHECK((c.sources[1].epoch == 75 && c.sources[1].cursor == 0));
  o.sources = {{dir / "a", 0}, {dir / "b", 0}};  // weights proportional to samples: 10 to 4
  const DataCursor p = open_dataset(o)->cursor(14);
  CHECK((p.sources[0].epoch == 1 && p.sources[1].epoch == 1));
  o.order = SampleOrder::kMegatron;
  o.num_samples = 50;
  CHECK(sample_of(*open_dataset(o), 49).size() == 11);
}

TEST_CASE("weights whose sum is beyond a double are shares all the same") {
  TempDir dir;
  write_documents(dir / "a", {Sample(101, 1)});
  write_documents(dir / "b", {Sample(101, 2)});
  const auto d = open_dataset(options_for({{dir / "a", 1e308}, {dir / "b", 1e308}}, 10));
  int64_t a = 0;
  for (int64_t k = 0; k < 100; ++k) a += sample_of(*d, k)[0] == 1;
  CHECK(a == 50);
  auto o = options_for({{dir / "a", 0}}, 10);
  o.whole = false;
  o.split = "1e308,1e308";
  expect_error(Exit::kUsage, {"data.split", "smaller numbers"}, [&] { open_dataset(o); });
}

TEST_CASE("problems of all datasets of a blend are listed together") {
  TempDir dir;
  write_documents(dir / "short", {Sample(3, 1)});
  write_documents(dir / "good", {Sample(300, 1)});
  expect_error(Exit::kUsage, {"short: ", "3 tokens", "gone: no such file"}, [&] {
    open_dataset(options_for({{dir / "short", 1}, {dir / "good", 1}, {dir / "gone", 1}}, 10));
  });
  expect_error(Exit::kUsage, {"dataset 2", "above 0", "-1"}, [&] {
    open_dataset(options_for({{dir / "good", 1}, {dir / "good", -1}}, 10));
  });
}

TEST_CASE("a token outside the vocabulary is reported with its position") {
  TempDir dir;
  auto documents = made_up_documents(30);
  documents[17] = Sample(40, 5);
  documents[17][23] = 1007;
  write_documents(dir / "f", documents);
  auto o = options_for({{dir / "f", 0}}, 12);
  o.vocab = 1000;
  const auto d = open_dataset(o);
  expect_error(Exit::kIo, {"f.bin: document 17, position 23", "token 1007", "vocabulary 1000"}, [&] {
    for (int64_t k = 0; k < d->size(); ++k) sample_of(*d, k);
  });
  o.vocab = 1008;
  CHECK(open_dataset(o)->size() == d->size());
}

TEST_CASE("files of different tokenizers are not blended, nor one file with data.valid of another") {
  TempDir dir;
  for (const char* name : {"a", "b", "c"}) {
    write_documents(dir / name, {Sample(100, 3)});
    write_token_meta(dir / (std::string(name) + ".meta.json"),
                     {.tokenizer_sha256 = *name == 'b' ? "bbbb" : "aaaa", .vocab = 300, .eod = 4});
  }
  auto o = options_for({{dir / "a", 0.7}, {dir / "b.bin", 0.3}}, 12);
  expect_error(Exit::kUsage, {"a.meta.json: aaaa", "b.meta.json: bbbb", "data prepare --tokenizer"},
               [&] { open_dataset(o); });
  o = options_for({{dir / "a", 0.7}, {dir / "c", 0.3}}, 12);
  CHECK(open_dataset(o)->size() > 1);
  o.beside = {{dir / "b", 0}};
  expect_error(Exit::kUsage, {"b.meta.json: bbbb"}, [&] { open_dataset(o); });
}

TEST_CASE("a run does not start on tokens of another tokenizer") {
  TempDir dir;
  write_documents(dir / "f", {Sample(100, 3)});
  write_token_meta(dir / "f.meta.json", {.tokenizer_sha256 = "aaaa", .vocab = 300, .eod = 4});
  auto o = options_for({{dir / "f", 0}}, 12);
  o.tokenizer_sha256 = "bbbb";
  expect_error(Exit::kUsage, {"aaaa", "bbbb", "name the right data.tokenizer"}, [&] { open_dataset(o); });
  o.tokenizer_sha256 = "aaaa";
  CHECK(open_dataset(o)->size() == 8);
  o.vocab = 256;
  expect_error(Exit::kUsage, {"300 pieces", "vocabulary is 256", "384"}, [&] { open_dataset(o); });
}

TEST_CASE("a file that changes during a run stops it at the next epoch") {
  TempDir dir;
  write_documents(dir / "f", {Sample(100, 3)});
  const auto d = open_dataset(options_for({{dir / "f", 0}}, 12));
  CHECK(sample_of(*d, 0)[0] == 3);
  std::ofstream(dir / "f.idx", std::ios::app) << "more";
  CHECK(sample_of(*d, 1)[0] == 3);
  expect_error(Exit::kIo, {"changed on disk"}, [&] { sample_of(*d, d->size()); });
}

TEST_CASE("mock tokens are the words of a Philox stream") {
  DatasetOptions o = options_for({{"mock", 0}}, 6);
  expect_error(Exit::kUsage, {"mock", "vocabulary", "found 0"}, [&] { open_dataset(o); });
  o.vocab = 977;
  const auto d = open_dataset(o);
  const Sample s = sample_of(*d, 41);
  for (size_t k = 0; k < s.size(); ++k)
    CHECK(s[k] == static_cast<int32_t>(philox(stream_key(1234, "data/mock"), k / 4, 41)[k % 4] % 977));
  CHECK(d->cursor(7).sources[0].cursor == 7);
  o.sources.push_back({"mock", 0});
  expect_error(Exit::kUsage, {"mock cannot be blended"}, [&] { open_dataset(o); });
}

TEST_CASE("splits are by tokens where train or valid would get no document, and never otherwise") {
  TempDir dir;
  Sample one(1000);
  std::iota(one.begin(), one.end(), 0);
  write_documents(dir / "one", {one});
  auto o = options_for({{dir / "one", 0}}, 9);
  o.whole = false;
  o.split = "90,10";
  o.part = 1;
  expect_error(Exit::kUsage, {"valid needs at least 1 of 1 documents"}, [&] { open_dataset(o); });
  o.split_tokens = true;
  o.order = SampleOrder::kSequential;
  std::vector<std::string> warnings;
  o.warn = [&](const std::string& w) { warnings.push_back(w); };
  const auto valid = open_dataset(o);
  CHECK(valid->size() == 11);
  CHECK(sample_of(*valid, 0)[0] == 900);
  CHECK(sample_of(*valid, 10)[9] == 999);
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("900 to 1000 of 1000") != std::string::npos);
  o.part = 0;
  const auto train = open_dataset(o);
  CHECK(train->size() == 99);
  CHECK(sample_of(*train, 98)[9] == 891);
  CHECK(train->cursor(0).split == "90,10 of tokens");
  // Several documents: split inside the second; with enough documents, tokens are not split.
  write_documents(dir / "two", {Sample(30, 1), Sample(70, 2), Sample(20, 3)});
  o.sources = {{dir / "two", 0}};
  o.split = "99,1,0";
  o.seq = 1;
  o.part = 1;
  CHECK_THROWS(open_dataset(o));  // one token is not a sample
  o.split = "95,5";
  CHECK(sample_of(*open_dataset(o), 0) == Sample{3, 3});
  o.split = "60,40";
  warnings.clear();
  CHECK(open_dataset(o)->size() == 19);
  CHECK(warnings.empty());
  // Shuffled: every token of the share once per epoch, and none of the other share.
  o = options_for({{dir / "one", 0}}, 9);
  o.whole = false;
  o.split = "90,10";
  o.split_tokens = true;
  std::set<int32_t> drawn;
  const auto shuffled = open_dataset(o);
  for (int64_t k = 0; k < shuffled->size(); ++k)
    for (const int32_t id : sample_of(*shuffled, k)) drawn.insert(id);
  CHECK(*drawn.rbegin() < 900);
  CHECK(drawn.size() > 890);
}
