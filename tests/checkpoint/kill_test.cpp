// SIGKILL at random moments of saving, and a disk that is really full: acknowledged steps survive without any repair.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <random>

#include "checkpoint/store/steps.h"
#include "kernels/core/owned_file.h"
#include "tests/checkpoint/support.h"
#include "tests/support/goal.h"
#include "tests/support/small_disk.h"
#include "tests/support/test.h"

namespace gt::ckpt {
namespace {

namespace fs = std::filesystem;

std::vector<Param> small_model() {
  return {{"a.weight", {80, 30}, ShardSpec::split(0)}, {"b.weight", {50}, ShardSpec::replicate()}};
}

int64_t newest(const std::string& dir) {
  const auto steps = list_steps(dir);
  return steps.empty() ? 0 : steps.front().first;
}

// A process that saves step after step and reports each committed one through `write_end`.
[[noreturn]] void save_forever(const std::string& dir, const Layout& l, int64_t first, int write_end) {
  for (int64_t step = first;; ++step) {
    try {
      save(dir, l, step, small_model(), 2);
    } catch (...) { _exit(3); }
    if (write(write_end, &step, sizeof step) != sizeof step) _exit(4);
  }
}

int64_t last_reported(int from, int64_t before) {
  int64_t step = 0;
  while (read(from, &step, sizeof step) == sizeof step) before = step;
  return before;
}

}  // namespace

TEST_CASE("a process killed while it saves loses no acknowledged step", "[R01]") {
  const int kills = goal_size(kSanitized ? 40 : 300, 1000);
  std::mt19937_64 random(goal_seed());
  const Layout layout{2, 1, 1, 1};
  const TempDir dir;
  save(dir.path, layout, 1, small_model(), 2);
  int64_t acknowledged = 1, lost = 0, invalid = 0, during = 0;
  double save_us = 5000;  // time from fork to the first acknowledged save, in us; adapted
  for (int k = 0; k < kills; ++k) {
    int pipe_fd[2];
    REQUIRE(pipe(pipe_fd) == 0);
    const int64_t first = newest(dir.path) + 1;
    const pid_t pid = fork();
    if (pid == 0) save_forever(dir.path, layout, first, pipe_fd[1]);
    close(pipe_fd[1]);
    usleep(static_cast<useconds_t>(std::uniform_real_distribution<>(0, 2 * save_us)(random)));
    kill(pid, SIGKILL);
    int status = 0;
    waitpid(pid, &status, 0);
    REQUIRE(WIFSIGNALED(status));
    remove_ownerless_files("/dev/shm");  // skeletons of its shards; in production the launcher does this
    const int64_t last = last_reported(pipe_fd[0], acknowledged);
    close(pipe_fd[0]);
    save_us *= last >= first ? 0.9 : 1.1;  // half of the kills precede the end of the first save
    acknowledged = last;
    for (const auto& e : fs::directory_iterator(dir.path))
      during += e.path().filename().string().rfind(".tmp-", 0) == 0;
    const int64_t found = newest(dir.path);
    lost += found < acknowledged;
    invalid += load_and_compare(dir.path, {1, 1, 1, 1}, found, "auto", small_model()) != "";
    for (const auto& c : list_checkpoints(dir.path)) invalid += c.status != "ok";
    if (lost + invalid > 0) break;
  }
  CHECK(lost == 0);
  CHECK(invalid == 0);
  CHECK(acknowledged > kills / 20);
  CHECK(during > kills / 100);  // otherwise the kills missed the saves
  print_figure("R01", cat(kills, " kills while saving (", during, " inside an attempt), ", acknowledged,
                          " steps acknowledged: ", lost, " lost, ", invalid, " visible but invalid, 0 repairs"));
}

TEST_CASE("a full disk, at any fill level, drops the attempt, and the next save works", "[R05]") {
  const SmallDisk disk(64 << 20);
  if (!disk.why_not().empty()) return print_skip("R05", disk.why_not());
  const int fills = goal_size(20, 100);
  const std::vector<Param> model = {{"w", {300, 1000}, ShardSpec::split(0)},
                                    {"b.weight", {50}, ShardSpec::replicate()}};
  const Layout layout{2, 1, 1, 1};
  const std::string dir = disk.path() + "/checkpoints";
  std::mt19937_64 random(goal_seed());
  const int64_t before = disk.free();
  save(dir, layout, 1, model, 2);
  const int64_t size = before - disk.free();
  int64_t step = 1, refused = 0, orphans = 0;
  for (int k = 0; k < fills; ++k) {
    disk.fill(std::uniform_int_distribution<int64_t>(0, 3 * size / 2)(random));
    std::string error;
    try {
      save(dir, layout, step + 1, model, 2);
      ++step;
    } catch (const Error& e) {
      error = e.what();
      ++refused;
    }
    INFO(error);
    CHECK((error.empty() || error.find("No space left on device") != std::string::npos));
    disk.empty();
    int left = 0;
    for (const auto& e : fs::directory_iterator(dir)) left += e.path().filename().string().rfind(".tmp-", 0) == 0;
    orphans = std::max<int64_t>(orphans, left);
    REQUIRE(load_and_compare(dir, {1, 1, 1, 1}, step, "auto", model) == "");
    save(dir, layout, ++step, model, 2);
    REQUIRE(load_and_compare(dir, layout, step, "auto", model) == "");
  }
  CHECK(refused > fills / 2);
  CHECK(refused < fills);
  CHECK(orphans <= 1);
  print_figure("R05", cat(fills, " fills of a 64 MiB tmpfs at random levels: ", refused,
                          " saves refused, 0 steps lost, ", orphans, " attempts left at most, every next save worked"));
}

}  // namespace gt::ckpt
