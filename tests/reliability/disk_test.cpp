// Whole runs that are killed while saving or whose disk fills up: they resume from what they committed.
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "checkpoint/store/steps.h"
#include "kernels/core/check.h"
#include "tests/launch/process.h"
#include "tests/launch/rank_processes.h"
#include "tests/support/goal.h"
#include "tests/support/small_disk.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

const std::string kTiny =
    "--model.layers 4 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
    "--train.global_batch 8 --train.micro_batch 1 --device.kind cpu --log.tensorboard false --schedule.type constant ";

int64_t newest(const std::string& dir) {
  const auto steps = list_steps(dir);
  return steps.empty() ? 0 : steps.front().first;
}

// Step from which the last start in the log resumed.
int64_t resumed_from(const std::string& run) {
  std::ifstream in(run + "/log.jsonl");
  int64_t step = -1;
  for (std::string line; std::getline(in, line);) {
    const auto j = nlohmann::json::parse(line, nullptr, false);
    if (j.is_object() && j.value("type", "") == "start")
      step = j["resumed_from"].is_null() ? 0 : j["resumed_from"].get<int64_t>();
  }
  return step;
}

}  // namespace

TEST_CASE("a whole run killed at random while it saves resumes from its newest checkpoint, every time", "[R01]") {
  const int kills = goal_size(kSanitized ? 3 : 30, 200);
  TempDir dir;
  // Processes at full size; with threads a start takes a third of the time.
  const std::string command = kTiny + "--tp 2 --pp 2 --train.steps 1000000 --checkpoint.every 1 --log.name x " +
                              (full_size() ? "" : "--launch.ranks threads");
  const std::string run = dir / "runs/x", checkpoints = run + "/checkpoints";
  std::mt19937_64 random(goal_seed());
  int64_t latest = 0, lost = 0, moved = 0;
  for (int k = 0; k < kills; ++k) {
    const int64_t before = newest(checkpoints);
    const Outcome r = gpttrain(command, dir.path(), 120, [&](int pid) {
      wait_until("a newer checkpoint", [&] { return newest(checkpoints) > before; });
      usleep(static_cast<useconds_t>(random() % 60000));
      latest = newest(checkpoints);
      kill(-pid, SIGKILL);
    });
    moved += latest > before;
    lost += newest(checkpoints) < latest;
    if (k > 0 && resumed_from(run) < before) ++lost;
    INFO(k << "\n" << r.out);
    REQUIRE(lost == 0);
  }
  const Outcome fine = gpttrain("ckpt verify runs/x --all", dir.path());
  INFO(fine.out);
  CHECK(fine.code == 0);
  CHECK(moved == kills);
  int aside = 0;
  for (const auto& e : std::filesystem::directory_iterator(checkpoints))
    aside += e.path().filename().string().find(".corrupt") != std::string::npos;
  CHECK(aside == 0);
  print_figure("R01", cat(kills, " kills of a whole 4-rank run, ", newest(checkpoints), " steps committed: ", lost,
                          " lost, ", aside, " set aside, 0 repairs"));
}

TEST_CASE("a run whose disk fills up continues, reports it, and saves again when there is space", "[R05]") {
  const SmallDisk disk(16 << 20);
  if (!disk.why_not().empty()) return print_skip("R05", disk.why_not());
  TempDir dir;
  const std::string log = dir / "runs/x/log.jsonl", checkpoints = disk.path() + "/checkpoints";
  const Outcome r = gpttrain(kTiny +
                                 "--tp 2 --launch.ranks threads --train.steps 60 --checkpoint.every 2 --log.name x "
                                 "--fault.inject delay@step:ms=30,rank=0 --checkpoint.dir " +
                                 checkpoints,
                             dir.path(), 120, [&](int) {
                               wait_until("two checkpoints", [&] { return newest(checkpoints) >= 4; });
                               disk.fill(20000);
                               wait_for_step(log, 30);
                               disk.empty();
                             });
  INFO(r.out);
  CHECK(r.code == 0);
  CHECK(r.prints("not written: checkpoint of step "));
  CHECK(r.prints("No space left on device"));
  CHECK(logged(dir / "runs/x", "loss").size() == 60);
  CHECK(newest(checkpoints) == 60);
  const Outcome fine = gpttrain("ckpt verify " + checkpoints + " --all", dir.path());
  INFO(fine.out);
  CHECK(fine.code == 0);
}

TEST_CASE("a run whose log cannot be completed finishes with 74 and reports the missing records", "[R05]") {
  const SmallDisk disk(4 << 20);
  if (!disk.why_not().empty()) return print_skip("R05", disk.why_not());
  TempDir dir;
  const Outcome r = gpttrain(kTiny + "--train.steps 40 --checkpoint.every 0 --log.name x --log.dir " + disk.path() +
                                 " --checkpoint.dir " + (dir / "checkpoints") + " --fault.inject delay@step:ms=30",
                             dir.path(), 120, [&](int) {
                               wait_for_step(disk.path() + "/x/log.jsonl", 3);
                               disk.fill(0);
                             });
  INFO(r.out);
  CHECK(r.code == 74);
  CHECK(r.prints("finished at step 40, but not all of its logs are written: " + disk.path() + "/x/log.jsonl: "));
  CHECK(r.prints(" records could not be written: No space left on device"));
  CHECK(newest(dir / "checkpoints") == 40);
}
