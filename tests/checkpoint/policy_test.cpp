// Write and retention policies: parts, writer threads, O_DIRECT, commits without a rename, best steps.
#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>

#include "checkpoint/diff.h"
#include "checkpoint/format/block_stream.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/shard_writer.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "checkpoint/store/retention.h"
#include "checkpoint/store/steps.h"
#include "checkpoint/verify.h"
#include "kernels/core/hash/crc32c.h"
#include "kernels/core/hash/sha256.h"
#include "tests/checkpoint/faulty_vfs.h"
#include "tests/checkpoint/support.h"
#include "tests/support/test.h"

namespace gt::ckpt {
namespace {

namespace fs = std::filesystem;
using Fault = FaultyVfs::Fault;

void save_with(Vfs& vfs, const std::string& dir, const Layout& l, int64_t step, const SaveOptions& options,
               std::vector<std::string>* warnings = nullptr) {
  std::mutex mutex;
  const auto errors = run_ranks(l, [&](int r, const Mesh& mesh) {
    Rank rank(odd_model(), l, r);
    rank.fill(static_cast<uint32_t>(step));
    const SaveReport report =
        save_checkpoint(vfs, dir, some_state(step), rank.views, {{.name = "config.json", .path = "", .text = "{}"}},
                        options, mesh, host_device(), {});
    const std::lock_guard lock(mutex);
    if (warnings != nullptr) warnings->insert(warnings->end(), report.warnings.begin(), report.warnings.end());
  });
  for (const auto& e : errors) REQUIRE(e == "");
}

SaveOptions options_of(const Layout& l) { return {.zero_stage = l.zero, .retention = {.keep = 0}}; }

int files_of(const std::string& step, const std::string& end) {
  int n = 0;
  for (const auto& e : fs::directory_iterator(step))
    n += e.path().filename().string().size() > end.size() && e.path().string().ends_with(end);
  return n;
}

// Moves a step out of the folder and leaves a link of its name (or of `as`).
std::string archive(const std::string& dir, const std::string& step, const std::string& to,
                    const std::string& as = "") {
  fs::rename(dir + "/" + step, to + "/" + step);
  fs::create_directory_symlink(to + "/" + step, dir + "/" + (as.empty() ? step : as));
  return to + "/" + step;
}

}  // namespace

TEST_CASE("a shard of many part files is read, verified and compared like one file") {
  const TempDir dir, whole;
  Vfs vfs;
  const Layout l{2, 1, 2, 1};
  SaveOptions o = options_of(l);
  save_with(vfs, whole.path, l, 4, o);
  o.how.part_bytes = 1;  // one rectangle per file
  o.how.hash = ShardHash::kSha256;
  o.how.readback = true;
  save_with(vfs, dir.path, l, 4, o);
  const std::string step = dir.path + "/step-000000004";
  CHECK(files_of(whole.path + "/step-000000004", ".h5") == l.world());
  CHECK(files_of(step, ".h5") > 4 * l.world());
  CHECK(fs::exists(step + "/rank-00003.001.h5"));
  CHECK(fs::exists(step + "/rank-00003.001.idx"));
  for (const Layout& to : {l, Layout{1, 1, 1, 1}, Layout{1, 2, 2, 0}}) CHECK(load_and_compare(dir.path, to, 4) == "");
  const VerifyReport report = verify_step(vfs, step, {.deep = true});
  CHECK(report.findings.empty());
  CHECK(report.files > 8 * l.world());
  CHECK(diff_steps(vfs, step, whole.path + "/step-000000004", 0).tensors.empty());
  CHECK_THAT(inspect_checkpoint(step, {}), Catch::Contains(cat(files_of(step, ".h5"), " shards")));

  SECTION("a damaged or missing part file is found and named") {
    std::string bytes = slurp(step + "/rank-00002.002.h5");
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    spill(step + "/rank-00002.002.h5", bytes);
    const VerifyReport damaged = verify_step(vfs, step, {});
    REQUIRE(damaged.findings.size() == 2);  // a block, and the hash of the file
    for (const Finding& f : damaged.findings) CHECK(f.file == "rank-00002.002.h5");
    fs::remove(step + "/rank-00001.001.idx");
    CHECK(verify_step(vfs, step, {}).findings.size() == 3);
    CHECK_THAT(load_and_compare(dir.path, l, 4), Catch::Contains("rank-00001.001.idx"));
  }
}

TEST_CASE("part files stay below their limit, and a rectangle is never split") {
  const TempDir dir;
  Vfs vfs;
  const Layout one{1, 1, 1, 1};
  const std::vector<Param> model = {{"a", {300, 100}, ShardSpec::split(0)},
                                    {"b", {200, 100}, ShardSpec::split(0)},
                                    {"c", {100, 100}, ShardSpec::split(0)},
                                    {"d", {1000, 100}, ShardSpec::split(0)}};
  constexpr int64_t kLimit = 280000;
  const auto errors = run_ranks(one, [&](int r, const Mesh& mesh) {
    Rank rank(model, one, r);
    rank.fill(1);
    SaveOptions o = options_of(one);
    o.how.part_bytes = kLimit;
    save_checkpoint(vfs, dir.path, some_state(1), rank.views, {}, o, mesh, host_device(), {});
    auto tensors = stored_tensors(rank.views);
    CHECK_THROWS_WITH(cut_into_parts({2000, tensors[0]}, 1),
                      Catch::Contains("checkpoint.part_bytes 1: a rank would write"));
  });
  REQUIRE(errors[0] == "");
  const Manifest m = open_step(vfs, dir.path + "/step-000000001").manifest;
  REQUIRE(m.files.size() > 4);
  int large = 0;
  for (const ShardFile& f : m.files) large += f.bytes > kLimit;
  CHECK(large == 2);  // weights and state of d, each alone
  CHECK(load_and_compare(dir.path, one, 1, "auto", model) == "");
}

TEST_CASE("writer threads and O_DIRECT do not change a byte of a file") {
  const TempDir dir(true);
  const int64_t total = 3 * BlockStream::kWindow + 12345;
  std::string expected(static_cast<size_t>(total), '\0');
  for (size_t k = 0; k < expected.size(); ++k)
    expected[k] = k % 5000000 < 1000 ? '\0' : static_cast<char>(k * 31 + k / 77);
  std::vector<uint32_t> blocks;
  for (int64_t at = 0; at < total; at += kBlockBytes)
    blocks.push_back(crc32c(expected.data() + at, static_cast<size_t>(std::min(kBlockBytes, total - at))));
  struct Counting : Vfs {
    int open(const std::string& p, int flags, int mode) override {
      direct += (flags & O_DIRECT) != 0;
      return refuse_open && (flags & O_DIRECT) ? -EINVAL : Vfs::open(p, flags, mode);
    }
    int64_t pwrite(int fd, const void* d, int64_t n, int64_t o) override {
      const bool is_direct = (::fcntl(fd, F_GETFL) & O_DIRECT) != 0;
      return is_direct && refuse_write ? -EINVAL : Vfs::pwrite(fd, d, n, o);
    }
    std::atomic<int> direct{0};
    bool refuse_open = false, refuse_write = false;
  };
  for (const int threads : {1, 2, 4})
    for (const int way : {0, 1, 2, 3}) {
      Counting vfs;
      vfs.refuse_open = way == 2;
      vfs.refuse_write = way == 3;
      const std::string path = dir.path + "/file";
      const WriteOptions how{
          .threads = threads, .direct_io = way > 0 ? DirectIo::kAuto : DirectIo::kOff, .hash = ShardHash::kSha256};
      BlockStream out(vfs, path, total, how);
      for (int64_t at = 0; at < total;) {
        if (at % 5000000 == 0) at = std::min(at + 1000, total);  // holes
        const int64_t n = std::min({int64_t{777777}, total - at, 5000000 - at % 5000000});
        const auto to = out.buffer(at, n);
        std::memcpy(to.data(), expected.data() + at, to.size());
        if (at / 777777 % 3 != 0) out.set_crc(crc32c(to.data(), to.size()));
        at += static_cast<int64_t>(to.size());
      }
      INFO(threads << " threads, way " << way);
      CHECK(out.finish() == blocks);
      CHECK(out.sha256_hex() == sha256_hex(expected));
      CHECK((slurp(path) == expected));
      CHECK(vfs.direct == (way > 0 ? 1 : 0));
    }
}

TEST_CASE("a writer thread's failed write ends the save, names the file and leaves nothing behind", "[R04]") {
  struct Full : Vfs {
    int64_t pwrite(int fd, const void* d, int64_t n, int64_t o) override {
      return o >= BlockStream::kWindow ? -ENOSPC : Vfs::pwrite(fd, d, n, o);
    }
  } vfs;
  const Layout one{1, 1, 1, 1};
  const std::vector<Param> model = {{"w", {3 << 20}, ShardSpec::split(0)}};
  for (const bool by_marker : {false, true}) {
    const TempDir dir;
    const auto errors = run_ranks(one, [&](int r, const Mesh& mesh) {
      Rank rank(model, one, r, {"master"});
      rank.fill(1);
      SaveOptions o = options_of(one);
      o.how.threads = 3;
      o.how.commit = by_marker ? CommitBy::kMarker : CommitBy::kRename;
      save_checkpoint(vfs, dir.path, some_state(1), rank.views, {}, o, mesh, host_device(), {});
    });
    CHECK_THAT(errors[0],
               Catch::StartsWith("74:") && Catch::Contains("rank-00000.h5") && Catch::Contains("No space left"));
    CHECK(fs::is_empty(dir.path));
  }
}

TEST_CASE("a disk that returns other bytes than written is found by reading back, before the commit") {
  struct Flips : Vfs {
    int64_t pwrite(int fd, const void* d, int64_t n, int64_t o) override {
      if (n < 2048) return Vfs::pwrite(fd, d, n, o);
      std::string bytes(static_cast<const char*>(d), static_cast<size_t>(n));
      bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
      return Vfs::pwrite(fd, bytes.data(), n, o);
    }
  } vfs;
  const Layout one{1, 1, 1, 1};
  const std::vector<Param> model = {{"w", {5000}, ShardSpec::split(0)}};
  for (const bool readback : {true, false}) {
    const TempDir dir;
    const auto errors = run_ranks(one, [&](int r, const Mesh& mesh) {
      Rank rank(model, one, r, {"master"});
      rank.fill(1);
      SaveOptions o = options_of(one);
      o.how.readback = readback;
      save_checkpoint(vfs, dir.path, some_state(1), rank.views, {}, o, mesh, host_device(), {});
    });
    INFO(errors[0]);
    CHECK((errors[0] == "") == !readback);
    if (readback)
      CHECK_THAT(errors[0], Catch::StartsWith("74:") && Catch::Contains("came back different from what was written"));
    CHECK(list_steps(dir.path).empty() == readback);
  }
}

TEST_CASE("a tensor that the ranks do not hold whole ends the save and is named") {
  const TempDir dir;
  Vfs vfs;
  const Layout two{2, 1, 1, 1};
  const std::vector<Param> model = {{"w", {64, 8}, ShardSpec::split(0)}, {"v", {32}, ShardSpec::split(0)}};
  const auto errors = run_ranks(two, [&](int r, const Mesh& mesh) {
    Rank rank(model, two, r, {"master"});
    rank.fill(1);
    if (r == 1) std::erase_if(rank.views, [](const ShardView& v) { return v.name == "master/w"; });
    save_checkpoint(vfs, dir.path, some_state(1), rank.views, {}, options_of(two), mesh, host_device(), {});
  });
  for (const std::string& e : errors) CHECK_THAT(e, Catch::StartsWith("70:") && Catch::Contains("master/w"));
  CHECK(list_steps(dir.path).empty());
}

TEST_CASE("without a rename the manifest commits: a crash at any call leaves the newest checkpoint loadable", "[R02]") {
  const Layout l{2, 1, 1, 1};
  int committed = 0, lost = 0;
  for (int n = 1;; ++n) {
    const TempDir dir;
    save(dir.path, l, 1);
    FaultyVfs vfs(n, n % 2 ? Fault::kCrash : Fault::kTornCrash);
    SaveOptions o = options_of(l);
    o.how.commit = CommitBy::kMarker;
    run_ranks(l, [&](int r, const Mesh& mesh) {
      Rank rank(odd_model(), l, r);
      rank.fill(2);
      save_checkpoint(vfs, dir.path, some_state(2), rank.views, {}, o, mesh, host_device(), {});
    });
    INFO("crash at call " << n << ", " << vfs.hit());
    const auto steps = list_steps(dir.path);
    REQUIRE_FALSE(steps.empty());
    (steps.front().first == 2 ? committed : lost)++;
    CHECK(load_and_compare(dir.path, {1, 1, 1, 1}, steps.front().first) == "");
    CHECK(list_attempts(dir.path).empty());  // the load cleaned up
    for (const auto& c : list_checkpoints(dir.path)) CHECK(c.status == "ok");
    Vfs good;
    save_with(good, dir.path, l, 2, o);  // the same step again
    CHECK(load_and_compare(dir.path, l, 2) == "");
    if (n > vfs.calls()) break;
  }
  CHECK(lost > 15);
  CHECK(committed > 3);
}

TEST_CASE("the best steps are those with the lowest validation losses at the time of the save") {
  const TempDir dir;
  Vfs vfs;
  const Layout one{1, 1, 1, 1};
  const double losses[] = {5, 3, 4, 3.5, 6, 7, 8};  // of steps 1 ...
  double best = 1e9;
  int64_t best_step = -1;
  for (int64_t step = 1; step <= 7; ++step) {
    const double loss = losses[step - 1];
    if (loss < best) best = loss, best_step = step;
    const auto errors = run_ranks(one, [&](int r, const Mesh& mesh) {
      Rank rank(odd_model(), one, r);
      rank.fill(static_cast<uint32_t>(step));
      TrainState s = some_state(step);
      s.eval_loss = loss;
      s.eval_step = step;
      s.best_loss = best;
      s.best_step = best_step;
      save_checkpoint(dir.path, s, rank.views, {}, {.zero_stage = 1, .retention = {.keep = 0}}, mesh, host_device(),
                      {});
    });
    REQUIRE(errors[0] == "");
  }
  const auto kept = [&](int count) {
    std::string out;
    for (const auto& e : plan_prune(vfs, dir.path, {.keep = 2, .keep_best = count}, false).keep)
      out += cat(*step_number(e.name), " ");
    return out;
  };
  CHECK(kept(0) == "7 6 ");
  CHECK(kept(1) == "7 6 2 ");
  CHECK(kept(3) == "7 6 4 3 2 ");
  CHECK(kept(99) == "7 6 5 4 3 2 1 ");
  const auto list = list_checkpoints(dir.path, {.keep = 2, .keep_every = 5, .keep_best = 1});
  REQUIRE(list.size() == 7);
  CHECK(list[6].kept == "newest 1 of 2");
  CHECK(list[4].kept == "every 5 steps");
  CHECK(list[1].kept == "best validation loss");
  CHECK(list[0].kept == "goes at the next save: older than the 2 newest");
  const TrainState read = read_state(dir.path + "/step-000000004");
  CHECK(read.eval_step == 4);
  CHECK(read.eval_loss == 3.5);
}

TEST_CASE("read_once reads each block once per dp group, with the same values, and reports damage on every rank") {
  const TempDir dir;
  save(dir.path, {2, 1, 1, 1}, 3);
  save(dir.path, {2, 1, 1, 1}, 4);
  struct Counting : Vfs {
    int open(const std::string& p, int flags, int mode) override {
      const int fd = Vfs::open(p, flags, mode);
      const std::lock_guard lock(mutex);
      if (p.ends_with(".h5"))
        shards.insert(fd);
      else
        shards.erase(fd);
      return fd;
    }
    int64_t pread(int fd, void* d, int64_t n, int64_t o) override {
      const std::lock_guard lock(mutex);
      if (shards.count(fd)) bytes += n;
      return Vfs::pread(fd, d, n, o);
    }
    std::mutex mutex;
    std::set<int> shards;  // descriptors of .h5 files
    int64_t bytes = 0;
  };
  const auto load = [&](const Layout& l, bool once, int64_t expected) {
    Counting vfs;
    const auto errors = run_ranks(l, [&](int r, const Mesh& mesh) {
      Rank rank(odd_model(), l, r);
      rank.poison();
      const auto report =
          load_checkpoint(vfs, dir.path, "auto", rank.views, mesh, host_device(), {}, {}, {.read_once = once});
      GT_CHECK(report && report->state.step == expected, "loaded another step");
      GT_CHECK(rank.difference(static_cast<uint32_t>(expected)).empty(),
               rank.difference(static_cast<uint32_t>(expected)));
    });
    for (const auto& e : errors) CHECK(e == "");
    return vfs.bytes;
  };
  const int64_t all = load({1, 1, 1, 1}, false, 4);
  CHECK(load({1, 1, 4, 0}, false, 4) == 4 * all);
  CHECK(load({1, 1, 4, 0}, true, 4) == all);
  for (const Layout& l : {Layout{2, 1, 2, 0}, Layout{2, 1, 2, 1}, Layout{1, 2, 2, 0}, Layout{1, 1, 3, 1}})
    CHECK(load(l, true, 4) <= load(l, false, 4));
  const std::string shard = dir.path + "/step-000000004/rank-00001.h5";
  std::string bytes = slurp(shard);
  bytes[bytes.size() - 5000] = static_cast<char>(bytes[bytes.size() - 5000] ^ 8);
  spill(shard, bytes);
  load({1, 1, 4, 0}, true, 3);
  CHECK_FALSE(fs::exists(shard));  // set aside
}

TEST_CASE("ranks that disagree about the attempt all fail") {
  for (const bool differ : {false, true}) {
    const auto errors = run_ranks({2, 1, 2, 1}, [&](int r, const Mesh& mesh) {
      TrainState s = some_state(3);
      if (differ && r == 2) s.run_uuid = "another";
      GT_CHECK(same_attempt(mesh, s) == !differ);
    });
    for (const auto& e : errors) CHECK(e == "");
  }
}

TEST_CASE("a deletion unlinks a link and does not touch its target") {
  const TempDir dir, elsewhere;
  Vfs vfs;
  const Layout one{1, 1, 1, 1};
  for (int64_t step = 1; step <= 6; ++step) save(dir.path, one, step);
  const std::string step1 = archive(dir.path, "step-000000001", elsewhere.path),
                    step2 = archive(dir.path, "step-000000002", elsewhere.path, ".del-step-000000002"),
                    step3 = archive(dir.path, "step-000000003", elsewhere.path, ".tmp-step-000000003-x"),
                    inner = elsewhere.path + "/inner";
  fs::create_directory(inner);
  spill(inner + "/file", "kept");
  fs::create_directory_symlink(inner, dir.path + "/step-000000004/inner");
  fs::create_directory_symlink(elsewhere.path + "/nowhere", dir.path + "/.del-step-000000009");
  const auto all_there = [&] {
    for (const std::string& step : {step1, step2, step3})
      if (files_of(step, ".h5") != 1 || !verify_step(vfs, step, {}).findings.empty()) return false;
    return slurp(inner + "/file") == "kept";
  };
  REQUIRE(all_there());
  const auto left = [&] {
    std::string out;
    for (const auto& e : fs::directory_iterator(dir.path))
      if (e.path().filename() != "latest") out += e.path().filename().string() + " ";
    return out;
  };

  SECTION("by prune, whose plan lists it") {
    const PrunePlan plan = plan_prune(vfs, dir.path, {.keep = 2, .keep_best = 0}, true);
    int links = 0;
    for (const auto& e : plan.remove) {
      links += e.why.ends_with("; a link: its target is kept");
      CHECK((e.bytes == 0) == (e.why.find("a link") != std::string::npos));
    }
    CHECK(links == 4);
    prune(vfs, dir.path, plan);
  }
  SECTION("by the retention of the next save") {
    const auto errors = run_ranks(one, [&](int r, const Mesh& mesh) {
      Rank rank(odd_model(), one, r);
      rank.fill(7);
      const auto report =
          save_checkpoint(dir.path, some_state(7), rank.views, {},
                          {.zero_stage = 1, .retention = {.keep = 3, .keep_best = 0}}, mesh, host_device(), {});
      GT_CHECK(report.warnings.empty(), report.warnings.front());
    });
    REQUIRE(errors[0] == "");
    fs::remove_all(dir.path + "/step-000000007");
  }
  CHECK(all_there());
  CHECK((left() == "step-000000005 step-000000006 " || left() == "step-000000006 step-000000005 "));
}

TEST_CASE("a save follows no link, and the umask sets the mode of every file and folder") {
  const TempDir dir, elsewhere;
  spill(elsewhere.path + "/victim", "precious");
  fs::create_symlink(elsewhere.path + "/victim", dir.path + "/.latest.tmp");
  const mode_t before = ::umask(0022);
  Vfs vfs;
  std::vector<std::string> warnings;
  save_with(vfs, dir.path + "/new", {1, 1, 1, 1}, 1, options_of({}), &warnings);
  CHECK(warnings.empty());
  ::umask(0027);
  save_with(vfs, dir.path, {1, 1, 1, 1}, 2, options_of({}), &warnings);
  ::umask(before);
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0], Catch::Contains("/.latest.tmp: is a symbolic link, and nothing is written through one"));
  CHECK(slurp(elsewhere.path + "/victim") == "precious");
  const auto mode = [](const std::string& path) { return static_cast<int>(fs::status(path).permissions()); };
  int files = 0;
  for (const auto& e : fs::recursive_directory_iterator(dir.path)) {
    if (e.is_symlink()) continue;
    INFO(e.path());
    const bool closed = e.path().string().find("/step-000000002") != std::string::npos;
    CHECK(mode(e.path()) == (e.is_directory() ? (closed ? 0750 : 0755) : (closed ? 0640 : 0644)));
    ++files;
  }
  CHECK(files > 8);
}

}  // namespace gt::ckpt
