// Preemption: a stop signal to any of the processes makes the run commit at a step boundary and exit with 75. The same
// command resumes bitwise identical to an uninterrupted run.
#include <signal.h>
#include <unistd.h>

#include "kernels/core/check.h"
#include "tests/launch/process.h"
#include "tests/launch/rank_processes.h"
#include "tests/support/goal.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

const std::string kTiny =
    "--model.layers 4 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
    "--train.global_batch 8 --train.micro_batch 1 --device.kind cpu --log.tensorboard false --schedule.type constant "
    "--train.steps 40 --fault.inject delay@step:rank=0,ms=100 ";

// Returns the newest committed step of a run; -1 if none.
int64_t newest_step(const std::string& run) {
  int64_t newest = -1;
  std::error_code ec;
  for (const auto& e : std::filesystem::directory_iterator(run + "/checkpoints", ec))
    if (const std::string name = e.path().filename().string(); name.size() == 14 && name.rfind("step-", 0) == 0)
      newest = std::max<int64_t>(newest, std::stoll(name.substr(5)));
  return newest;
}

}  // namespace

TEST_CASE("a stop by INT, TERM or USR1 to a rank, all ranks or the launcher saves a step, exits 75 and resumes bitwise",
          "[R14]") {
  TempDir dir;
  const Outcome calm = gpttrain(kTiny + "--pp 2 --launch.ranks threads --log.name calm", dir.path());
  INFO(calm.out);
  REQUIRE(calm.code == 0);
  struct Case {
    std::string name;
    int signal;
    bool launcher;
    std::vector<int> ranks;
    int times;
  };
  const std::vector<Case> cases = {{"one", SIGTERM, false, {1}, 1},
                                   {"all", SIGUSR1, false, {0, 1}, 1},
                                   {"twice", SIGUSR1, true, {}, 2},
                                   {"int", SIGINT, true, {}, 1}};
  const int stops = goal_size(kSanitized ? 4 : 8, 50);  // and four below
  int good = 0;
  for (int n = 0; n < stops; ++n) {
    const Case& c = cases[static_cast<size_t>(n) % cases.size()];
    const std::string name = cat(c.name, n), run = kTiny + "--pp 2 --log.name " + name, folder = dir / ("runs/" + name);
    std::vector<int> pids;
    const Outcome r = gpttrain(run, dir.path(), 120, [&](int pid) {
      wait_for_step(folder + "/log.jsonl", 2);
      for (int k = 0; k < 2; ++k) pids.push_back(process_of(pid, k));
      for (int k = 0; k < c.times; ++k) {
        if (c.launcher) kill(pid, c.signal);
        for (int rank : c.ranks) send_signal(pids[static_cast<size_t>(rank)], c.signal);
        if (k + 1 < c.times) wait_until_taken(pid, c.signal);  // otherwise both may merge into one
      }
    });
    INFO(c.name << "\n" << r.out);
    CHECK(r.code == 75);
    const auto steps = static_cast<int64_t>(logged(folder, "loss").size());
    CHECK(newest_step(folder) == steps);  // of its last step
    CHECK(steps < 40);
    CHECK(left_behind(dir.path(), pids) == "");
    const Outcome rest = gpttrain(run + " --launch.ranks threads", dir.path());
    INFO(rest.out);
    CHECK(rest.code == 0);
    const bool same = logged(folder, "loss") == logged(dir / "runs/calm", "loss");
    CHECK(same);
    good += r.code == 75 && newest_step(folder) >= steps && rest.code == 0 && same;
  }
  print_figure("R14", cat(good, "/", stops, " preemptions: committed at the step's end, exit 75, resumed bitwise: ",
                          good == stops ? "met" : "MISSED"));
}

TEST_CASE("a stop while a checkpoint is written finishes it, and one during the start loses nothing", "[R14]") {
  TempDir dir;
  const std::string run = kTiny + "--tp 2 --checkpoint.every 1 --log.name save ";
  const Outcome saving = gpttrain(run, dir.path(), 120, [&](int pid) {
    wait_until("a checkpoint", [&] { return newest_step(dir / "runs/save") >= 1; });
    kill(pid, SIGTERM);  // saving at every step keeps a save in progress
  });
  INFO(saving.out);
  CHECK(saving.code == 75);
  CHECK(newest_step(dir / "runs/save") == static_cast<int64_t>(logged(dir / "runs/save", "loss").size()));
  for (const auto& e : std::filesystem::directory_iterator(dir / "runs/save/checkpoints"))
    CHECK(e.path().filename().string().rfind(".", 0) != 0);
  const Outcome fine = gpttrain("ckpt verify runs/save --all", dir.path());
  INFO(fine.out);
  CHECK(fine.code == 0);

  // During the launcher's start, the ranks' start, and between MPI_Init and the first step.
  using Ready = std::function<bool(int pid, const std::string& run)>;
  const std::pair<std::string, Ready> phases[] = {
      {"launcher", [](int pid, const std::string&) { return !children(pid).empty(); }},
      {"ranks", [](int pid, const std::string&) { return process_of(pid, 1) != 0; }},
      {"folder", [](int, const std::string& run) { return std::filesystem::exists(run); }}};
  for (const auto& [phase, ready] : phases) {
    const Outcome starting = gpttrain(kTiny + "--tp 2 --log.name " + phase, dir.path(), 120, [&](int pid) {
      wait_until(phase, [&] { return ready(pid, dir / ("runs/" + phase)); });
      kill(pid, SIGINT);
    });
    INFO(phase << "\n" << starting.out);
    CHECK(starting.code == 75);
    CHECK(left_behind(dir.path(), {}) == "");
  }
}
