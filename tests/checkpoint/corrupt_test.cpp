// Damage is detected before use, whichever byte it is in.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "checkpoint/format/manifest.h"
#include "checkpoint/verify.h"
#include "kernels/core/hash/sha256.h"
#include "kernels/core/rng.h"
#include "parallel/comm/self_group.h"
#include "tests/checkpoint/support.h"
#include "tests/support/test.h"

namespace gt::ckpt {
namespace {

namespace fs = std::filesystem;

// `rows` of a: more for a larger checkpoint.
std::vector<Param> small_model(int64_t rows = 8) {
  return {{"a.weight", {rows, 3}, ShardSpec::split(0)}, {"b.weight", {5}, ShardSpec::replicate()}};
}

// One rank, no threads: the result of load_step on a step in its current state.
struct OneRank {
  explicit OneRank(int64_t rows = 8) : rank(small_model(rows), {1, 1, 1, 1}, 0, {"master"}) {}
  SelfFactory factory;
  Mesh mesh{{}, factory};
  Rank rank;

  std::string load(const std::string& step) {
    try {
      rank.poison();
      load_step(step, rank.views, mesh, host_device(), {});
    } catch (const Error& e) { return cat(static_cast<int>(e.code()), ": ", e.what()); }
    return rank.difference(1);
  }
};

std::vector<std::string> files_of(const std::string& step) {
  std::vector<std::string> out;
  for (const auto& e : fs::directory_iterator(step)) out.push_back(e.path().string());
  std::sort(out.begin(), out.end());
  return out;
}

void save_small(const std::string& dir, int64_t step, const Layout& l = {1, 1, 1, 1}, int64_t rows = 8) {
  const auto errors = run_ranks(l, [&](int r, const Mesh& mesh) {
    Rank rank(small_model(rows), l, r, {"master"});
    rank.fill(static_cast<uint32_t>(step));
    save_checkpoint(dir, some_state(step), rank.views, {{.name = "config.json", .path = "", .text = "{\"a\":1}"}},
                    {.zero_stage = l.zero, .retention = {.keep = 0}}, mesh, host_device(), {});
  });
  for (const auto& e : errors) GT_CHECK(e.empty(), e);
}

// A checkpoint of 20 kB; the nightly script sets 256 kB with GPT_TEST_FLIP_KB.
TEST_CASE("every changed byte of every file of a checkpoint is found before use", "[R06]") {
  const char* setting = std::getenv("GPT_TEST_FLIP_KB");
  const int64_t rows = setting == nullptr ? 8 : std::atoi(setting) * 1000 / 12;
  const TempDir dir;
  save_small(dir.path, 1, {1, 1, 1, 1}, rows);
  const std::string step = dir.path + "/step-000000001";
  OneRank one(rows);
  REQUIRE(one.load(step) == "");
  int64_t bytes = 0, found = 0;
  for (const std::string& file : files_of(step)) {
    const std::string good = slurp(file);
    const int fd = ::open(file.c_str(), O_RDWR);
    REQUIRE(fd >= 0);
    int64_t missed = 0;
    for (size_t k = 0; k < good.size(); ++k) {
      const auto bad = static_cast<char>(good[k] ^ static_cast<char>(1 + philox(1, k, 0)[0] % 255));
      GT_CHECK(::pwrite(fd, &bad, 1, static_cast<off_t>(k)) == 1);
      missed += one.load(step).substr(0, 3) != "65:";
      GT_CHECK(::pwrite(fd, &good[k], 1, static_cast<off_t>(k)) == 1);
    }
    ::close(fd);
    INFO(file);
    CHECK(missed == 0);
    bytes += static_cast<int64_t>(good.size());
    found += static_cast<int64_t>(good.size()) - missed;
  }
  CHECK(bytes > std::max<int64_t>(20000, 12 * rows));
  std::printf("damage: %lld of %lld changed bytes found before use\n", static_cast<long long>(found),
              static_cast<long long>(bytes));
  CHECK(one.load(step) == "");
}

TEST_CASE("every truncation of every file, and every missing file, is found") {
  const TempDir dir;
  save_small(dir.path, 1);
  const std::string step = dir.path + "/step-000000001";
  OneRank one;
  for (const std::string& file : files_of(step)) {
    INFO(file);
    const std::string good = slurp(file);
    for (size_t n = 0; n < good.size(); n += std::max<size_t>(1, good.size() / 97)) {
      fs::resize_file(file, n);
      REQUIRE(one.load(step).substr(0, 3) == "65:");
      spill(file, good);
    }
    spill(file, good + "x");
    REQUIRE(one.load(step).substr(0, 3) == "65:");
    fs::remove(file);
    const std::string missing = one.load(step);
    CHECK(missing.substr(0, 3) == "65:");
    spill(file, good);
  }
  CHECK(one.load(step) == "");
}

TEST_CASE("shards of other ranks, other steps and other attempts are refused") {
  const TempDir dir;
  const Layout two{2, 1, 1, 1};
  save_small(dir.path, 1, two);
  save_small(dir.path, 2, two);
  const std::string one_dir = dir.path + "/step-000000001/", two_dir = dir.path + "/step-000000002/";
  OneRank one;
  REQUIRE(one.load(dir.path + "/step-000000001") == "");
  const auto swapped = [&](const std::string& a, const std::string& b) {
    fs::rename(a, dir.path + "/x");
    fs::rename(b, a);
    fs::rename(dir.path + "/x", b);
  };
  for (const char* ext : {".h5", ".idx"}) {
    INFO(ext);
    swapped(one_dir + "rank-00000" + ext, one_dir + "rank-00001" + ext);
    CHECK(one.load(dir.path + "/step-000000001").substr(0, 3) == "65:");
    swapped(one_dir + "rank-00000" + ext, one_dir + "rank-00001" + ext);
    swapped(one_dir + "rank-00000" + ext, two_dir + "rank-00000" + ext);
    CHECK(one.load(dir.path + "/step-000000001").substr(0, 3) == "65:");
    swapped(one_dir + "rank-00000" + ext, two_dir + "rank-00000" + ext);
  }
  // Shard and index together, from another step.
  for (const char* ext : {".h5", ".idx"}) swapped(one_dir + "rank-00000" + ext, two_dir + "rank-00000" + ext);
  CHECK(one.load(dir.path + "/step-000000001").substr(0, 3) == "65:");
  for (const char* ext : {".h5", ".idx"}) swapped(one_dir + "rank-00000" + ext, two_dir + "rank-00000" + ext);
  CHECK(one.load(dir.path + "/step-000000001") == "");
  // The whole folder under another number.
  fs::rename(dir.path + "/step-000000002", dir.path + "/step-000000009");
  CHECK_THAT(one.load(dir.path + "/step-000000009"), Catch::Contains("holds step 2"));
}

TEST_CASE("a link in place of a shard is not followed") {
  const TempDir dir;
  save_small(dir.path, 1);
  const std::string shard = dir.path + "/step-000000001/rank-00000.h5";
  fs::rename(shard, dir.path + "/elsewhere.h5");
  fs::create_symlink(dir.path + "/elsewhere.h5", shard);
  OneRank one;
  CHECK_THAT(one.load(dir.path + "/step-000000001"), Catch::StartsWith("65:") && Catch::Contains("symbolic link"));
}

TEST_CASE("rectangles with gaps are found even when every seal is valid") {
  const TempDir dir;
  const Layout two{2, 1, 1, 1};
  save_small(dir.path, 1, two);
  const std::string manifest = dir.path + "/step-000000001/manifest.json";
  std::string text = slurp(manifest);
  text.resize(text.size() - 78);
  const std::string all = "\"master/a.weight\",\"dtype\":\"f32\",\"shape\":[8,3],\"files\":[[0,1]]";
  REQUIRE(text.find(all) != std::string::npos);
  text.replace(text.find(all), all.size(), "\"master/a.weight\",\"dtype\":\"f32\",\"shape\":[8,3],\"files\":[[0,0]]");
  spill(manifest, text + ",\"sha256\":\"" + sha256_hex(text) + "\"}\n");
  OneRank one;
  CHECK_THAT(one.load(dir.path + "/step-000000001"), Catch::StartsWith("65:") && Catch::Contains("12 of 24"));
}

TEST_CASE("an index of another rank, step or attempt is refused even when every seal is valid") {
  const TempDir dir;
  save_small(dir.path, 1);
  const std::string step = dir.path + "/step-000000001", index = step + "/rank-00000.idx";
  const std::string honest = slurp(index);
  const Manifest good = parse_manifest(slurp(step + "/manifest.json"), step);
  const auto result = [&](const std::function<void(ShardIndex&)>& lie) {
    ShardIndex x = decode_index(honest, index, good.shapes());
    lie(x);
    const std::string bytes = encode(x);
    Manifest m = good;
    m.files[0].idx_sha256 = sha256_hex(bytes);
    spill(index, bytes);
    spill(step + "/manifest.json", to_text(m));
    OneRank one;
    const std::string loaded = one.load(step);
    Vfs vfs;
    const auto findings = verify_step(vfs, step, {}).findings;
    return loaded.empty() && findings.empty()                     ? std::string("good")
           : loaded.substr(0, 3) != "65:" || findings.size() != 1 ? "disagree: " + loaded
                                                                  : loaded;
  };
  CHECK(result([](ShardIndex&) {}) == "good");
  CHECK_THAT(result([](ShardIndex& x) { x.rank = 1; }), Catch::Contains("rank 1, part 0, whose file is rank-00001.h5"));
  CHECK_THAT(result([](ShardIndex& x) { x.part = 2; }), Catch::Contains("whose file is rank-00000.002.h5"));
  CHECK_THAT(result([](ShardIndex& x) { x.rank = -1; }), Catch::Contains("rank-00000.idx: header names rank -1"));
  CHECK_THAT(result([](ShardIndex& x) { x.step = 7; }), Catch::Contains("step 7"));
  CHECK_THAT(result([](ShardIndex& x) { x.uuid[0] ^= 1; }), Catch::Contains("of attempt "));
}

TEST_CASE("damage in a large shard is found in the block that is read, and named") {
  const TempDir dir;
  const std::vector<Param> large = {{"w", {700, 1000}, ShardSpec::split(0)}};
  save(dir.path, {1, 1, 2, 1}, 1, large);
  save(dir.path, {1, 1, 2, 1}, 2, large);
  const std::string shard = dir.path + "/step-000000002/rank-00001.h5";
  std::string bytes = slurp(shard);
  REQUIRE(bytes.size() > (2u << 20));
  bytes[(1u << 20) + 12345] ^= 4;
  spill(shard, bytes);
  const auto errors = run_ranks({1, 1, 1, 1}, [&](int r, const Mesh& mesh) {
    Rank rank(large, {1, 1, 1, 1}, r);
    load_step(dir.path + "/step-000000002", rank.views, mesh, host_device(), {});
  });
  CHECK_THAT(errors[0], Catch::StartsWith("65:") && Catch::Contains("rank-00001.h5") &&
                            Catch::Contains("block 1 (bytes 1048576 to 2097151)") && Catch::Contains("/w"));
  // Resuming sets the step aside and loads the older one, on every rank.
  CHECK(load_and_compare(dir.path, {2, 1, 1, 1}, 1, "auto", large) == "");
  int aside = 0;
  for (const auto& c : list_checkpoints(dir.path)) aside += c.status == "corrupt";
  CHECK(aside == 1);
  CHECK_FALSE(fs::exists(dir.path + "/step-000000002"));
}

}  // namespace
}  // namespace gt::ckpt
