// The trainer from outside: ranks as processes and as threads, resume, Ctrl-C, logs. Small models, synthetic tokens.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/core/check.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

const std::string kTiny =
    "--model.layers 5 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
    "--train.global_batch 8 "
    "--train.micro_batch 1 --optim.lr 3e-3 --schedule.warmup_steps 2 --device.kind cpu --log.tensorboard false ";

void check_close(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  REQUIRE(a.size() == b.size());
  for (size_t k = 0; k < a.size(); ++k) {
    INFO("step " << k + 1);
    CHECK(a[k] == Approx(b[k]).epsilon(tolerance));
  }
}

}  // namespace

TEST_CASE("sixteen processes on two cores have the losses of one rank") {
  TempDir dir;
  const std::string many = kTiny + "--tp 2 --pp 4 --dp 2 --train.steps 20 --log.name many";
  const Outcome one = gpttrain(kTiny + "--train.steps 20 --log.name one", dir.path());
  INFO(one.out);
  REQUIRE(one.code == 0);
  const Outcome all = gpttrain(many, dir.path());
  INFO(all.out);
  REQUIRE(all.code == 0);
  const auto losses = logged(dir / "runs/one", "loss");
  CHECK(losses.size() == 20);
  check_close(logged(dir / "runs/many", "loss"), losses, 1e-5);
  check_close(logged(dir / "runs/many", "grad_norm"), logged(dir / "runs/one", "grad_norm"), 1e-4);
}

TEST_CASE("the timers in log.jsonl add up to the step that they name") {
  TempDir dir;
  const Outcome run = gpttrain(kTiny + "--train.steps 12 --log.name one --log.timers true", dir.path());
  INFO(run.out);
  REQUIRE(run.code == 0);
  CHECK_THAT(run.out, Contains("time of step 10  ") && !Contains("time of step 12  "));
  std::map<int64_t, double> seconds;
  std::istringstream lines(read_file(dir / "runs/one/log.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto record = nlohmann::json::parse(line);
    if (record.at("type") != "step") continue;
    const int64_t step = record.at("step");
    seconds[step] = record.at("step_seconds");
    INFO(line);
    if (step == 1) CHECK(record.at("timers_step").is_null());
    if (step == 1) continue;
    CHECK(record.at("timers_step") == step - 1);
    CHECK(record.at("timers").contains("forward"));
    double sum = 0;
    for (const auto& [name, part] : record.at("timers").items()) {
      CHECK(part.get<double>() >= 0);
      sum += part.get<double>();
    }
    CHECK(sum == Approx(seconds[step - 1]).epsilon(1e-6));
  }
  CHECK(seconds.size() == 12);
}

TEST_CASE("processes and threads of the same layout are bitwise equal") {
  TempDir dir;
  const std::string layout = kTiny + "--tp 2 --pp 2 --train.steps 4 ";
  REQUIRE(gpttrain(layout + "--log.name processes", dir.path()).code == 0);
  REQUIRE(gpttrain(layout + "--log.name threads --launch.ranks threads", dir.path()).code == 0);
  CHECK(logged(dir / "runs/processes", "loss") == logged(dir / "runs/threads", "loss"));
  CHECK(logged(dir / "runs/processes", "grad_norm") == logged(dir / "runs/threads", "grad_norm"));
}

TEST_CASE("a run that stops half way and resumes is bitwise the uninterrupted run") {
  TempDir dir;
  const std::string layout =
      kTiny + "--tp 2 --pp 2 --dp 2 --launch.ranks threads --checkpoint.every 6 --schedule.type linear ";
  REQUIRE(gpttrain(layout + "--train.steps 12 --log.name whole", dir.path()).code == 0);
  // Same command, killed after step 6's checkpoint; its schedule is that of 12 steps.
  const Outcome part = gpttrain(layout + "--train.steps 12 --log.name parts", dir.path(), 120, [&](int pid) {
    for (int i = 0; i < 1000 && !std::filesystem::exists(dir / "runs/parts/checkpoints/step-000000006"); ++i)
      usleep(5000);
    kill(-pid, SIGKILL);
  });
  CHECK(part.code == 128 + SIGKILL);
  const Outcome rest = gpttrain(layout + "--train.steps 12 --log.name parts", dir.path());
  INFO(rest.out);
  REQUIRE(rest.code == 0);
  CHECK(rest.prints("from step"));
  for (const char* key :
       {"loss", "grad_norm", "lr"}) {  // the kill may lose log lines of the first six steps, but no others
    INFO(key);
    const std::vector<double> whole = logged(dir / "runs/whole", key), parts = logged(dir / "runs/parts", key);
    REQUIRE(whole.size() == 12);
    REQUIRE(parts.size() >= 6);
    CHECK(std::equal(whole.end() - 6, whole.end(), parts.end() - 6));
  }
}

TEST_CASE("a finished run that is started again reports so and exits with 0") {
  TempDir dir;
  const std::string run = kTiny + "--log.name x --train.steps ";
  REQUIRE(gpttrain(run + "4", dir.path()).code == 0);
  const Outcome again = gpttrain(run + "3", dir.path());
  INFO(again.out);
  CHECK(again.code == 0);
  CHECK(again.prints("nothing to do"));
  CHECK(again.prints("--log.name"));
  CHECK(logged(dir / "runs/x", "loss").size() == 4);
}

TEST_CASE("a checkpoint of one layout resumes on another and stays close") {
  TempDir dir;
  const std::string run = kTiny + "--launch.ranks threads --log.name x ";
  REQUIRE(gpttrain(run + "--tp 2 --pp 2 --dp 2 --train.steps 4 --schedule.type constant", dir.path()).code == 0);
  REQUIRE(gpttrain(run + "--tp 1 --pp 4 --dp 1 --train.steps 8 --schedule.type constant", dir.path()).code == 0);
  REQUIRE(gpttrain(kTiny + "--log.name y --train.steps 8 --schedule.type constant", dir.path()).code == 0);
  check_close(logged(dir / "runs/x", "loss"), logged(dir / "runs/y", "loss"), 1e-5);
}

TEST_CASE("Ctrl-C finishes the step, saves, exits 75, and the same command resumes") {
  TempDir dir;
  for (const std::string ranks : {"processes", "threads"}) {
    const std::string run =
        kTiny + "--tp 2 --pp 2 --train.steps 100000 --log.name " + ranks + " --launch.ranks " + ranks;
    const Outcome stopped = gpttrain(run, dir.path(), 60, [&](int pid) {
      for (int i = 0;
           i < 2000 && read_file(dir / ("runs/" + ranks + "/log.jsonl")).find("\"step\": 3,") == std::string::npos; ++i)
        usleep(5000);
      kill(pid, SIGINT);
    });
    INFO(stopped.out);
    CHECK(stopped.code == 75);
    const size_t steps = logged(dir / ("runs/" + ranks), "loss").size();
    REQUIRE(steps >= 3);
    CHECK(std::filesystem::exists(dir / ("runs/" + ranks + "/checkpoints/latest")));
    const Outcome more = gpttrain(kTiny + "--tp 2 --pp 2 --launch.ranks threads --log.name " + ranks +
                                      " --train.steps " + std::to_string(steps + 2),
                                  dir.path());
    INFO(more.out);
    CHECK(more.code == 0);
    CHECK(logged(dir / ("runs/" + ranks), "loss").size() == steps + 2);
  }
}

TEST_CASE("a run directory that becomes read-only ends its logs, not the training") {
  if (geteuid() == 0) {  // root ignores permissions: put a file in place of the folder
    TempDir dir;
    std::filesystem::create_directories(dir / "runs/x/checkpoints");
    std::filesystem::remove(dir / "runs/x/checkpoints");
    write_file(dir / "runs/x/checkpoints", "in the way");
    const Outcome r = gpttrain(kTiny + "--train.steps 3 --log.name x --checkpoint.resume never --force", dir.path());
    INFO(r.out);
    CHECK(logged(dir / "runs/x", "loss").size() == 3);
    CHECK(r.prints("not written: checkpoint of step 3"));
    CHECK(r.code == 74);
    return;
  }
  TempDir dir;
  std::filesystem::create_directories(dir / "runs");
  std::filesystem::permissions(dir / "runs", std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  const Outcome r = gpttrain(kTiny + "--train.steps 3 --log.name x", dir.path());
  CHECK(r.code == 2);
  CHECK(r.prints("cannot make the run folder"));
}

TEST_CASE("ranks of one machine never initialize MPI") {
  TempDir dir;
  const auto without_mpi = [&](const std::string& flags) {  // MPI_Init would fail
    return shell(cat("OMPI_MCA_pml=there_is_no_such_thing ", binary_dir(), "/gpttrain ", kTiny,
                     "--train.steps 2 --log.name ", flags),
                 dir.path());
  };
  CHECK(without_mpi("one").code == 0);
  CHECK(without_mpi("threads --dp 2 --launch.ranks threads").code == 0);
  CHECK(without_mpi("processes --dp 2").code == 0);
  CHECK(shell("PATH=/nowhere OMPI_MCA_pml=x " + binary_dir() + "/gpttrain " + kTiny + "--train.steps 2 --dp 2",
              dir.path())
            .code == 0);
}

TEST_CASE("a pipeline with a large bubble is reported before it starts, with the memory of its stages") {
  TempDir dir;
  const Outcome idle = gpttrain(kTiny + "--pp 4 --train.grad_accum 2 --train.global_batch 2 --dry-run", dir.path());
  INFO(idle.out);
  REQUIRE(idle.code == 0);
  CHECK(idle.prints("pipeline bubble 6"));  // 3 / (2 + 3), plus the partition's imbalance
  for (const char* stage : {"stage 0: embedding", "stage 1: ", "stage 2: ", "stage 3: "}) CHECK(idle.prints(stage));
  const Outcome busy = gpttrain(kTiny + "--pp 2 --train.grad_accum 8 --dry-run", dir.path());
  REQUIRE(busy.code == 0);
  CHECK_FALSE(busy.prints("pipeline bubble"));
}

TEST_CASE("recomputation with a split backward warns with both peaks, and ZeRO's choice shows both costs") {
  TempDir dir;
  const Outcome o = gpttrain(kTiny +
                                 "--pp 2 --dp 2 --zero 2 --parallel.schedule zb-h1 --parallel.recompute full "
                                 "--train.steps 1 --launch.ranks threads --log.name x",
                             dir.path());
  INFO(o.out);
  REQUIRE(o.code == 0);
  CHECK(o.prints("zb-h1 keeps recomputed activations until their weight gradients"));
  CHECK(o.prints(", with 1f1b "));
  CHECK(o.prints("gradients reduced at the end of the step: a rank holds "));
  CHECK(o.prints("with zero.grad_reduce each: a rank holds "));
}
