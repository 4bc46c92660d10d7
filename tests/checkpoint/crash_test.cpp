// Crashes and failures at every call of the save path: the newest committed checkpoint always loads completely.
#include <filesystem>
#include <mutex>

#include "checkpoint/save.h"
#include "tests/checkpoint/faulty_vfs.h"
#include "tests/checkpoint/support.h"
#include "tests/support/test.h"

namespace gt::ckpt {
namespace {

namespace fs = std::filesystem;
using Fault = FaultyVfs::Fault;

// A small model: the number of calls matters, not of bytes.
std::vector<Param> small_model() {
  return {{"a.weight", {8, 3}, ShardSpec::split(0)}, {"b.weight", {5}, ShardSpec::replicate()}};
}

// Saves step 2 beside a committed step 1, keeping `keep`. Returns the ranks' errors.
std::vector<std::string> try_save(FaultyVfs& vfs, const std::string& dir, const Layout& l, int keep) {
  return run_ranks(l, [&](int r, const Mesh& mesh) {
    Rank rank(small_model(), l, r);
    rank.fill(2);
    save_checkpoint(vfs, dir, some_state(2), rank.views, {{.name = "config.json", .path = "", .text = "{}"}},
                    {.zero_stage = l.zero, .retention = {.keep = keep}}, mesh, host_device(), {});
  });
}

bool has_leftovers(const std::string& dir) {
  for (const auto& e : fs::directory_iterator(dir))
    if (e.path().filename().string().rfind(".tmp-step", 0) == 0 || e.path().filename().string().rfind(".del-", 0) == 0)
      return true;
  return false;
}

void crash_everywhere(const Layout& l, Fault fault) {
  int survived = 0, lost_attempts = 0;
  for (int n = 1;; ++n) {
    const TempDir dir;
    save(dir.path, l, 1, small_model());
    FaultyVfs vfs(n, fault);
    try_save(vfs, dir.path, l, 1);
    INFO("crash at call " << n << ", " << vfs.hit());
    const int64_t expected = vfs.committed() ? 2 : 1;
    (vfs.committed() ? survived : lost_attempts)++;
    CHECK(load_and_compare(dir.path, {1, 1, 1, 1}, expected, "auto", small_model()) == "");
    CHECK_FALSE(has_leftovers(dir.path));  // the load cleaned up
    // The run continues: the next save works on what the crash left.
    save(dir.path, l, 3, small_model(), 2);
    CHECK(load_and_compare(dir.path, l, 3, "auto", small_model()) == "");
    if (n > vfs.calls()) break;
  }
  CHECK(lost_attempts > 15);
  CHECK(survived > 10);
}

TEST_CASE("a crash at any call of a save leaves the newest committed checkpoint loadable: one rank") {
  crash_everywhere({1, 1, 1, 1}, Fault::kCrash);
}
TEST_CASE("a crash at any call of a save leaves the newest committed checkpoint loadable: two ranks") {
  crash_everywhere({2, 1, 1, 1}, Fault::kCrash);
}
TEST_CASE("a crash in the middle of any write leaves the newest committed checkpoint loadable") {
  crash_everywhere({1, 1, 2, 1}, Fault::kTornCrash);
}

void fail_everywhere(const Layout& l, int error, const char* text) {
  int dropped = 0;
  for (int n = 1;; ++n) {
    const TempDir dir;
    save(dir.path, l, 1, small_model());
    FaultyVfs vfs(n, Fault::kError, error);
    const auto errors = try_save(vfs, dir.path, l, 5);
    INFO("failure at call " << n << ", " << vfs.hit());
    for (const std::string& e : errors) {
      CHECK(e == errors[0]);  // identical on every rank
      if (e.empty()) continue;
      CHECK(e.substr(0, 3) == "74:");
      CHECK_THAT(e, Catch::Contains("rank ") && Catch::Contains(dir.path) && Catch::Contains(text));
    }
    dropped += !errors[0].empty();
    CHECK(has_leftovers(dir.path) == false);
    CHECK(load_and_compare(dir.path, l, vfs.committed() ? 2 : 1, "auto", small_model()) == "");
    save(dir.path, l, 3, small_model());
    CHECK(load_and_compare(dir.path, l, 3, "auto", small_model()) == "");
    if (n > vfs.calls()) break;
  }
  CHECK(dropped > 15);
}

TEST_CASE("a full disk at any call drops the attempt on every rank and the next save works") {
  fail_everywhere({2, 1, 1, 1}, ENOSPC, "No space left");
}
TEST_CASE("an I/O error at any call drops the attempt on every rank and the next save works") {
  fail_everywhere({1, 1, 2, 0}, EIO, "Input/output error");
}

TEST_CASE("an interrupted open, write or reservation and a short write are continued") {
  for (const auto& [fault, error] : {std::pair{Fault::kError, EINTR}, std::pair{Fault::kShort, 0}})
    for (int n = 1;; ++n) {
      const TempDir dir;
      save(dir.path, {1, 1, 1, 1}, 1, small_model());
      FaultyVfs vfs(n, fault, error);
      const auto errors = try_save(vfs, dir.path, {1, 1, 1, 1}, 5);
      INFO("call " << n << ", " << vfs.hit());
      if (fault == Fault::kShort || vfs.hit() == "open" || vfs.hit() == "pwrite" || vfs.hit() == "fallocate" ||
          vfs.hit() == "close") {
        CHECK(errors[0] == "");
        CHECK(load_and_compare(dir.path, {1, 1, 1, 1}, 2, "auto", small_model()) == "");
      }
      if (n > vfs.calls()) break;
    }
}

TEST_CASE("a failed fsync is not retried") {
  struct OneFailure : Vfs {
    int fsync(int fd) override { return ++syncs == 1 ? -EIO : Vfs::fsync(fd); }
    int syncs = 0;
  } vfs;
  const TempDir dir;
  const auto errors = run_ranks({1, 1, 1, 1}, [&](int r, const Mesh& mesh) {
    Rank rank(small_model(), {1, 1, 1, 1}, r);
    rank.fill(1);
    save_checkpoint(vfs, dir.path, some_state(1), rank.views, {}, {.zero_stage = 1}, mesh, host_device(), {});
  });
  CHECK_THAT(errors[0], Catch::Contains("fsync of"));
  CHECK(vfs.syncs == 1);  // not retried: the attempt was dropped at once
  CHECK(fs::is_empty(dir.path));
}

}  // namespace
}  // namespace gt::ckpt
