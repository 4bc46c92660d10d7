// SIGKILL at any moment of a save, and a disk that is really full: what was acknowledged is there, what is visible is
// whole, nothing is repaired by hand. Few rounds here; nightly.sh asks for more with GPT_TEST_KILLS and GPT_TEST_FILLS.
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "checkpoint/steps.h"
#include "checkpoint/verify.h"
#include "kernels/core/rng.h"
#include "tests/checkpoint/support.h"
#include "tests/support/test.h"

namespace gt::ckpt {
namespace {

namespace fs = std::filesystem;

int rounds(const char* variable, int standard) {
  const char* text = std::getenv(variable);
  return text == nullptr ? standard : std::atoi(text);
}

// Saves one step after the other and says each number to `acknowledge` once save_checkpoint() has returned.
[[noreturn]] void save_for_ever(const std::string& dir, int64_t first, int acknowledge) {
  for (int64_t step = first;; ++step) {
    save(dir, {2, 1, 2, 1}, step, odd_model(), 2);
    if (::write(acknowledge, &step, sizeof step) != sizeof step) ::_exit(1);
  }
}

TEST_CASE("killed at any moment of a save, no acknowledged checkpoint is lost and no visible one is damaged", "[R01]") {
  if (kSanitized) return;  // forks after threads have run
  const int kills = rounds("GPT_TEST_KILLS", 40);
  const TempDir dir;
  const auto begin = std::chrono::steady_clock::now();
  save(dir.path, {2, 1, 2, 1}, 1, odd_model(), 2);
  const double one = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  int64_t acknowledged = 1;
  int lost = 0, damaged = 0, unloadable = 0;
  for (int k = 0; k < kills; ++k) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::close(ends[0]);
      save_for_ever(dir.path, acknowledged + 1, ends[1]);
    }
    ::close(ends[1]);
    ::usleep(static_cast<useconds_t>(1e6 * 2.4 * one * philox(5, static_cast<uint64_t>(k), 0)[0] / 4294967296.0));
    ::kill(pid, SIGKILL);
    int status = 0;
    ::waitpid(pid, &status, 0);
    REQUIRE(WIFSIGNALED(status));
    for (int64_t step; ::read(ends[0], &step, sizeof step) == sizeof step;) acknowledged = step;
    ::close(ends[0]);
    Vfs vfs;
    const auto steps = list_steps(dir.path);
    lost += steps.empty() || steps.front().first < acknowledged;
    for (const auto& [n, path] : steps) damaged += !verify_step(vfs, path).findings.empty();
    // The next start cleans up, loads the newest, whichever layout it has, and goes on from there.
    acknowledged = std::max(acknowledged, steps.empty() ? 0 : steps.front().first);
    unloadable += !load_and_compare(dir.path, {1, 1, 1, 1}, acknowledged).empty();
    CHECK(list_attempts(dir.path).empty());
  }
  CHECK(lost == 0);
  CHECK(damaged == 0);
  CHECK(unloadable == 0);
  std::printf("kills: %d, %d lost, %d visible but damaged, %d repaired by hand, %lld steps committed\n", kills, lost,
              damaged, unloadable, static_cast<long long>(acknowledged));
}

TEST_CASE("a disk that is full leaves the last checkpoint as it was, and the next save works when there is room",
          "[R05]") {
  const TempDir base;
  const std::string disk = base.path + "/disk";
  fs::create_directories(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=3m") != 0) {
    WARN("SKIPPED: a small file system cannot be mounted here (not root)");
    return;
  }
  struct Unmount {
    std::string path;
    ~Unmount() { ::umount2(path.c_str(), MNT_DETACH); }
  } unmount{disk};
  const int fills = rounds("GPT_TEST_FILLS", 20);
  const std::string dir = disk + "/checkpoints";
  save(dir, {2, 1, 2, 1}, 1, odd_model(), 2);
  int64_t step = 1;
  int failed = 0, lost = 0;
  for (int k = 0; k < fills; ++k) {
    const auto room = static_cast<int64_t>(fs::space(disk).available);
    const int64_t left = philox(6, static_cast<uint64_t>(k), 0)[0] % 600000;
    spill(disk + "/ballast", std::string(static_cast<size_t>(std::max<int64_t>(0, room - left)), 'b'));
    bool written = true;
    try {
      save(dir, {2, 1, 2, 1}, step + 1, odd_model(), 2);
    } catch (const Error& e) {
      written = false;
      CHECK_THAT(e.what(), Catch::Contains("No space left on device"));
    }
    step += written;
    failed += !written;
    lost += !load_and_compare(dir, {1, 2, 1, 1}, step).empty();
    CHECK(list_attempts(dir).size() <= 1);
    fs::remove(disk + "/ballast");
    save(dir, {2, 1, 2, 1}, ++step, odd_model(), 2);
  }
  CHECK(lost == 0);
  CHECK(failed > fills / 4);
  std::printf("full disk: %d fills, %d saves failed, %d checkpoints lost\n", fills, failed, lost);
}

}  // namespace
}  // namespace gt::ckpt
