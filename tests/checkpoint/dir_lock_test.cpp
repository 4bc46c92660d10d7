// One job per folder: live owners are respected, dead ones replaced.
#include "checkpoint/store/dir_lock.h"

#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "kernels/core/check.h"
#include "tests/checkpoint/support.h"
#include "tests/support/test.h"

namespace gt::ckpt {
namespace {

using std::chrono::milliseconds;

constexpr LockTimes kQuick{.beat = milliseconds(20), .stale = milliseconds(400), .settle = milliseconds(50)};

std::string refusal(const std::string& dir, LockTimes times = kQuick) {
  try {
    const DirLock lock(dir, times);
  } catch (const Error& e) { return cat(static_cast<int>(e.code()), ": ", e.what()); }
  return "";
}

std::string lock_of(const std::string& host, const std::string& boot, int pid, int counter) {
  return cat("{\"host\":\"", host, "\",\"boot\":\"", boot, "\",\"pid\":", pid, ",\"start\":\"1\",\"counter\":", counter,
             ",\"token\":\"t\"}\n");
}

TEST_CASE("a second job in a folder is refused, naming the owner, until the first one ends") {
  const TempDir dir;
  {
    const DirLock lock(dir.path + "/checkpoints", kQuick);
    const std::string text = refusal(dir.path + "/checkpoints");
    CHECK(text.substr(0, 2) == "2:");
    CHECK_THAT(text, Catch::Contains(cat("pid ", ::getpid())) && Catch::Contains("checkpoints/.lock"));
    CHECK_THAT(DirLock::living_owner(dir.path + "/checkpoints"), Catch::Contains(cat("pid ", ::getpid())));
  }
  CHECK(DirLock::living_owner(dir.path + "/checkpoints") == "");
  CHECK(std::filesystem::is_empty(dir.path + "/checkpoints"));
  CHECK(refusal(dir.path + "/checkpoints") == "");
}

TEST_CASE("the lock of a killed process is taken over immediately") {
  const TempDir dir;
  const pid_t child = ::fork();
  if (child == 0) {
    auto* lock = new DirLock(dir.path);
    static_cast<void>(lock);
    ::_exit(0);  // no destructor runs, as after SIGKILL
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(status == 0);
  REQUIRE(std::filesystem::exists(dir.path + "/.lock"));
  CHECK(DirLock::living_owner(dir.path) == "");
  CHECK(refusal(dir.path) == "");
  CHECK(std::filesystem::is_empty(dir.path));
}

TEST_CASE("an owner on another host is dead once its lock is no longer touched, and only then") {
  const TempDir dir;
  spill(dir.path + "/.lock", lock_of("elsewhere", "b", 1, 5));
  CHECK(refusal(dir.path) == "");  // after the stale time
  spill(dir.path + "/.lock", lock_of("elsewhere", "b", 1, 5));
  std::thread toucher([&] {
    std::this_thread::sleep_for(milliseconds(100));
    spill(dir.path + "/.next", lock_of("elsewhere", "b", 1, 6));
    std::filesystem::rename(dir.path + "/.next", dir.path + "/.lock");
  });
  const std::string text =
      refusal(dir.path, {.beat = milliseconds(20), .stale = milliseconds(20000), .settle = milliseconds(50)});
  toucher.join();
  CHECK_THAT(text, Catch::StartsWith("2:") && Catch::Contains("host elsewhere, pid 1"));
}

TEST_CASE("a malformed lock file is replaced after the stale time") {
  const TempDir dir;
  for (const char* text : {"", "{", "[1,2]", "{\"host\":3}", "\x00\xff\xfe"}) {
    spill(dir.path + "/.lock", text);
    CHECK(refusal(dir.path) == "");
  }
}

TEST_CASE("an owner that lost its lock fails, and neither steals nor removes it") {
  const TempDir dir;
  {
    const DirLock lock(dir.path, kQuick);
    lock.require_mine();
    spill(dir.path + "/.lock", lock_of("elsewhere", "b", 1, 1));
    std::string text;
    for (int i = 0; i < 1000 && text.empty(); ++i) {
      std::this_thread::sleep_for(milliseconds(10));
      try {
        lock.require_mine();
      } catch (const Error& e) { text = cat(static_cast<int>(e.code()), ": ", e.what()); }
    }
    CHECK_THAT(text, Catch::StartsWith("74:") && Catch::Contains("has taken this folder over: host elsewhere, pid 1"));
  }
  CHECK(slurp(dir.path + "/.lock") == lock_of("elsewhere", "b", 1, 1));
}

}  // namespace
}  // namespace gt::ckpt
