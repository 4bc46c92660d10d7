// Supervisor: restart decisions, and losses unaffected by restarts.
#include "launch/ranks/start/supervisor.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/core/check.h"
#include "tests/launch/process.h"
#include "tests/launch/rank_processes.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

const std::string kTiny =
    "--model.layers 4 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
    "--train.global_batch 8 --train.micro_batch 1 --device.kind cpu --log.tensorboard false --schedule.type constant ";

std::vector<nlohmann::json> restarts(const std::string& run) {
  std::vector<nlohmann::json> out;
  std::ifstream in(run + "/restarts.jsonl");
  for (std::string line; std::getline(in, line);) out.push_back(nlohmann::json::parse(line));
  return out;
}

// Returns the last `n` values. A killed process may lose up to a second of its log, except for steps that were
// repeated.
std::vector<double> tail(const std::string& run, const std::string& key, size_t n) {
  const std::vector<double> all = logged(run, key);
  return {all.end() - static_cast<ptrdiff_t>(std::min(n, all.size())), all.end()};
}

// Folder of the copies in memory that a rank keeps.
std::string copies_of(int pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/environ", std::ios::binary);
  constexpr std::string_view kName = "GPTTRAIN_COPIES=";
  for (std::string variable; std::getline(in, variable, '\0');)
    if (variable.rfind(kName, 0) == 0) return "/dev/shm/gpttrain-copies-" + variable.substr(kName.size(), 16);
  return "no copies";
}

bool wait_for(const std::string& path) {
  for (int i = 0; i < 6000; ++i) {
    if (std::filesystem::exists(path)) return true;
    usleep(10000);
  }
  return false;
}

}  // namespace

TEST_CASE("restarts: which failures, after which delay, and how many", "[R28]") {
  for (const int code : {0, 2, 16, 17, 65}) {
    RestartPolicy p(5);
    CHECK_FALSE(p.after({.code = code}).restart);
  }
  for (const int code : {70, 74, 75, 124, 128 + SIGKILL, 128 + SIGSEGV}) {
    RestartPolicy p(5);
    CHECK(p.after({.code = code}).restart);
    CHECK_FALSE(p.after({.code = code, .stop_requested = true}).restart);
  }
  SECTION("delays double from 1 to 60 seconds over attempts without progress and reset after one with progress") {
    RestartPolicy p(100);
    for (const double delay : {0., 1., 2., 4., 8., 16., 32., 60., 60.})
      CHECK(p.after({.code = 255, .machine_lost = true}).delay_s == delay);
    for (int i = 0; i < 3; ++i) CHECK(p.after({.code = 124, .progressed = true, .machine_lost = true}).delay_s == 0);
    CHECK(p.after({.code = 137}).delay_s == 1);
  }
  SECTION("three failures in a row without a commit end the job") {
    RestartPolicy p(100);
    CHECK(p.after({.code = 137}).restart);
    CHECK(p.after({.code = 137}).restart);
    CHECK(p.after({.code = 137, .progressed = true}).restart);
    CHECK(p.after({.code = 137}).restart);
    CHECK(p.after({.code = 137}).restart);
    const RestartDecision last = p.after({.code = 137});
    CHECK_FALSE(last.restart);
    CHECK_THAT(last.why, Catch::Contains("committed no newer checkpoint"));
  }
  SECTION("a lost machine uses up a restart, but is not a failure of the job, and skips no checkpoint") {
    RestartPolicy p(7);
    CHECK_FALSE(p.after({.code = 124, .progressed = true, .resumed_from = 40, .reached = 43}).older_step);
    for (int i = 0; i < 5; ++i) {
      const RestartDecision d = p.after({.code = 2, .resumed_from = 40, .reached = 43, .machine_lost = true});
      CHECK(d.restart);
      CHECK_FALSE(d.older_step);
      CHECK(d.delay_s == (1 << i));
    }
    CHECK(p.after({.code = 124, .resumed_from = 40, .reached = 43}).older_step);
    CHECK_THAT(p.after({.code = 255, .machine_lost = true}).why, Catch::Contains("no restarts left"));
  }
  SECTION("never once the last step is committed") {
    RestartPolicy p(5);
    const RestartDecision d = p.after({.code = 74, .progressed = true, .finished = true});
    CHECK_FALSE(d.restart);
    CHECK_THAT(d.why, Catch::Contains("all steps are made"));
    CHECK_FALSE(p.after({.code = 137, .machine_lost = true, .finished = true}).restart);
  }
  SECTION("at most the configured number") {
    RestartPolicy p(2);
    for (const bool again : {true, true, false}) CHECK(p.after({.code = 137, .progressed = true}).restart == again);
  }
  SECTION("two deaths at one step after one checkpoint: the previous checkpoint") {
    RestartPolicy p(9);
    CHECK_FALSE(p.after({.code = 137, .progressed = true, .resumed_from = 40, .reached = 43}).older_step);
    CHECK(p.after({.code = 137, .resumed_from = 40, .reached = 43}).older_step);
    RestartPolicy q(9);
    CHECK_FALSE(q.after({.code = 137, .progressed = true, .resumed_from = 40, .reached = 43}).older_step);
    CHECK_FALSE(q.after({.code = 137, .resumed_from = 40, .reached = 44}).older_step);
  }
}

TEST_CASE("a finished run whose log cannot be written is not made again, and its failure is reported", "[R28]") {
  TempDir dir;
  std::filesystem::create_directories(dir / "runs/x");
  REQUIRE(symlink("/dev/full", (dir / "runs/x/metrics.csv").c_str()) == 0);
  const Outcome r = gpttrain(
      kTiny + "--train.steps 6 --checkpoint.every 3 --log.csv --launch.max_restarts 3 --log.name x", dir.path());
  INFO(r.out);
  CHECK(r.code == 74);
  CHECK(r.prints("finished at step 6, but not all of its logs are written"));
  CHECK(r.prints("all steps are made and the checkpoint of the last one is committed: not restarting"));
  CHECK(restarts(dir / "runs/x").size() == 1);
  CHECK(logged(dir / "runs/x", "loss").size() == 6);
}

TEST_CASE("a killed and then a stopped rank: the job restarts with the losses of an undisturbed run", "[R28][R15]") {
  TempDir dir;
  const std::string run = kTiny + "--pp 2 --checkpoint.every 5 --train.steps 30 ";
  const std::string saved = dir / "runs/x/checkpoints/step-0000000";
  const Outcome calm = gpttrain(run + "--log.name calm --launch.ranks threads", dir.path());
  INFO(calm.out);
  REQUIRE(calm.code == 0);
  std::vector<int> pids;
  const Outcome r = gpttrain("launch " + run +
                                 "--max-restarts 9 --comm.stall_warn_s 6 --comm.stall_abort_s 7 --log.name x "
                                 "--fault.inject delay@step:rank=0,ms=50",
                             dir.path(), 250, [&](int pid) {
                               wait_for(saved + "05");
                               for (int k = 0; k < 2; ++k) pids.push_back(process_of(pid, k));
                               send_signal(pids[1], SIGKILL);
                               wait_for(dir / "runs/x/restarts.jsonl");
                               wait_for(saved + "20");
                               for (int k = 0; k < 2; ++k) pids.push_back(process_of(pid, k));
                               send_signal(pids[3], SIGSTOP);
                             });
  INFO(r.out);
  CHECK(r.code == 0);
  CHECK(r.prints("the run ended with 137 (SIGKILL): rank 1 "));
  CHECK(r.prints("restart 1 of 9 in 0 s, from step "));
  CHECK(r.prints("the run ended with 124: stalled: not arrived: rank 1"));
  for (const char* key : {"loss", "grad_norm"}) {
    CHECK(tail(dir / "runs/x", key, 10).size() == 10);
    CHECK(tail(dir / "runs/x", key, 10) == tail(dir / "runs/calm", key, 10));
  }
  const Outcome same = gpttrain("ckpt diff runs/x runs/calm", dir.path());
  INFO(same.out);
  CHECK(same.code == 0);
  const auto story = restarts(dir / "runs/x");
  REQUIRE(story.size() >= 2);
  CHECK(story[0]["code"] == 137);
  CHECK_THAT(story[0]["suspect"].get<std::string>(), Catch::Contains("pp1 dp0 tp0) died"));
  CHECK(story[0]["step_before"].is_null());
  CHECK(story[0]["step_after"] >= 5);
  CHECK(story.back()["code"] == 124);
  CHECK(story.back()["step_after"] >= 20);
  CHECK(story.back()["action"] == "restart");
  CHECK(left_behind(dir.path(), pids) == "");
  for (const auto& e : std::filesystem::directory_iterator(dir / "runs/x"))
    CHECK(e.path().filename().string().rfind(".", 0) != 0);  // no verdict files
  for (const auto& e : std::filesystem::directory_iterator(dir / "runs/x/checkpoints"))
    CHECK(e.path().filename().string().rfind(".", 0) != 0);  // neither attempts nor a lock
}

TEST_CASE("one rank and thread ranks are supervised too", "[R28]") {
  for (const std::string layout : {"", "--pp 2 --launch.ranks threads "}) {
    TempDir dir;
    const std::string run = kTiny + layout + "--checkpoint.every 5 --train.steps 30 ";
    const Outcome calm = gpttrain(run + "--log.name calm", dir.path());
    REQUIRE(calm.code == 0);
    const Outcome r = gpttrain(run + "--launch.max_restarts 2 --log.name x --fault.inject delay@step:ms=50", dir.path(),
                               100, [&](int pid) {
                                 wait_for(dir / "runs/x/checkpoints/step-000000005");
                                 for (int child : children(pid))
                                   send_signal(child, kSanitized ? SIGKILL : SIGSEGV);  // sanitizers handle SIGSEGV
                               });
    INFO(r.out);
    CHECK(r.code == 0);
    CHECK(r.prints(kSanitized ? "the run ended with 137 (SIGKILL); restart 1 of 2"
                              : "the run ended with 139 (SIGSEGV); restart 1 of 2"));
    CHECK(tail(dir / "runs/x", "loss", 20) == tail(dir / "runs/calm", "loss", 20));
  }
}

TEST_CASE("a job that dies at the same step again loads the older checkpoint, and gives up after three", "[R28]") {
  TempDir dir;
  const Outcome r = gpttrain(kTiny +
                                 "--checkpoint.every 4 --train.steps 50 --launch.max_restarts 20 --checkpoint.async "
                                 "false --log.name x --fault.inject exit@step:step=11,n=70",
                             dir.path());
  INFO(r.out);
  CHECK(r.code == 70);
  CHECK(r.prints("3 attempts in a row committed no newer checkpoint"));
  const auto story = restarts(dir / "runs/x");
  REQUIRE(story.size() >= 3);
  CHECK(story.size() <= 5);
  CHECK(story.back()["action"] == "stop");
  CHECK(story[0]["step_after"] == 8);
}

TEST_CASE("copies in memory: a restart loses no finished step and writes the log without a gap", "[R28]") {
  for (const std::string layout : {"--pp 2 ", "--dp 2 --zero 3 --launch.ranks threads "}) {
    TempDir dir;
    const std::string run = kTiny + layout + "--checkpoint.every 0 --train.steps 40 ";
    const Outcome calm = gpttrain(run + "--log.name calm", dir.path());
    REQUIRE(calm.code == 0);
    std::string copies;
    const Outcome r = gpttrain(run +
                                   "--launch.max_restarts 3 --log.name x --fault.peer_copies 1 "
                                   "--fault.inject delay@step:ms=50",
                               dir.path(), 100, [&](int pid) {
                                 wait_for_step(dir / "runs/x/log.jsonl", 11);  // the copy of step 10 is complete
                                 const int rank = process_of(pid, 1) > 0 ? process_of(pid, 1) : children(pid).at(0);
                                 copies = copies_of(rank);
                                 CHECK(std::filesystem::exists(copies + "/rank-1.0"));
                                 send_signal(rank, SIGKILL);
                               });
    INFO(r.out);
    CHECK(r.code == 0);
    CHECK_FALSE(std::filesystem::exists(copies));
    CHECK(r.prints("from the beginning or a later one in memory"));
    const size_t resumed = r.out.find("(copies in memory, 0 of 2 from other machines)");
    REQUIRE(resumed != std::string::npos);
    CHECK(std::stoi(r.out.substr(r.out.rfind("from step ", resumed) + 10)) >= 10);
    CHECK(logged(dir / "runs/x", "loss") == logged(dir / "runs/calm", "loss"));
    const Outcome same = gpttrain("ckpt diff runs/x runs/calm", dir.path());
    INFO(same.out);
    CHECK(same.code == 0);
  }
}

TEST_CASE("copies in memory: a job that dies at the same step again loads the older checkpoint", "[R28]") {
  TempDir dir;
  const Outcome r = gpttrain(kTiny +
                                 "--checkpoint.every 4 --train.steps 50 --launch.max_restarts 20 --checkpoint.async "
                                 "false --log.name x --fault.peer_copies 1 --fault.inject exit@step:step=11,n=70",
                             dir.path());
  INFO(r.out);
  CHECK(r.code == 70);
  CHECK(r.prints("from step 10 (copies in memory"));
  CHECK(r.prints("from step 4, the second newest"));
}

TEST_CASE("copies in memory: a checkpoint of a later step is loaded instead", "[R28]") {
  TempDir dir;
  const Outcome r = gpttrain(kTiny +
                                 "--checkpoint.every 4 --train.steps 50 --launch.max_restarts 1 --checkpoint.async "
                                 "false --log.name x --fault.peer_copies 1 --fault.peer_copy_every 10 --fault.inject "
                                 "exit@step:step=15,n=70",
                             dir.path());
  INFO(r.out);
  CHECK(r.code == 70);
  CHECK(r.prints("resumed      from step 12 "));
  CHECK_FALSE(r.prints("(copies in memory"));
}

TEST_CASE("copies in memory: without effect is reported, and a foreign variable is refused") {
  TempDir dir;
  const Outcome r = gpttrain(kTiny + "--train.steps 1 --fault.peer_copies 1 --log.name x", dir.path());
  CHECK(r.code == 0);
  CHECK(r.prints("fault: peer_copies 1 has no effect: without launch.max_restarts"));
  for (const std::string text : {"../../x:1:restore", "0123456789abcdef:0:new", "0123456789abcdef:1:old", ""}) {
    const Outcome bad = shell("GPTTRAIN_COPIES=" + text + " exec " + binary_dir() + "/gpttrain " + kTiny +
                                  "--train.steps 1 --fault.peer_copies 1 --log.name y",
                              dir.path());
    INFO(bad.out);
    CHECK(bad.code == 2);
    CHECK(bad.prints("GPTTRAIN_COPIES: expected JOB:ATTEMPT:new or :restore"));
  }
}

TEST_CASE("a failure that a restart cannot fix is not restarted", "[R28]") {
  TempDir dir;
  struct Case {
    std::string flags;
    int code;
  };
  for (const Case& c :
       {Case{"--model.heads 5", 2}, Case{"--fault.inject nan@grad --fault.bad_steps 1 --checkpoint.every 0", 17},
        Case{"--data.train nowhere", 2}}) {
    const Outcome r = gpttrain(kTiny + "--train.steps 4 --launch.max_restarts 5 --log.name x " + c.flags, dir.path());
    INFO(r.out);
    CHECK(r.code == c.code);
    CHECK_FALSE(r.prints("restart 1 of"));
  }
}

TEST_CASE("Ctrl-C while the supervisor waits ends at once, during training it saves, and nothing is restarted",
          "[R14]") {
  TempDir dir;
  const auto begin = std::chrono::steady_clock::now();
  const Outcome waiting =
      gpttrain(kTiny + "--train.steps 50 --launch.max_restarts 9 --log.name x --fault.inject exit@step:step=2,n=74",
               dir.path(), 60, [&](int pid) {
                 wait_until("the second restart", [&] { return restarts(dir / "runs/x").size() >= 2; });
                 kill(pid, SIGINT);  // the second restart waits 1 s; the third never comes
               });
  INFO(waiting.out);
  CHECK(waiting.code == 75);
  CHECK(waiting.prints("stopped while waiting"));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(50));

  const Outcome training = gpttrain(kTiny + "--tp 2 --train.steps 1000000 --launch.max_restarts 9 --log.name y",
                                    dir.path(), 60, [&](int pid) {
                                      wait_for_step(dir / "runs/y/log.jsonl", 5);
                                      kill(pid, SIGTERM);
                                    });
  INFO(training.out);
  CHECK(training.code == 75);
  CHECK_FALSE(training.prints("restart"));
  CHECK(restarts(dir / "runs/y").empty());
  CHECK(std::filesystem::exists(dir / "runs/y/checkpoints/latest"));
}

TEST_CASE("a supervisor below another launcher is refused") {
  TempDir dir;
  const std::string gpttrain = binary_dir() + "/gpttrain";
  const Outcome r =
      shell("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 exec " + gpttrain + " launch " + kTiny, dir.path());
  INFO(r.out);
  CHECK(r.code == 2);
  CHECK(r.prints("started by another launcher (OMPI_COMM_WORLD_RANK)"));
}
