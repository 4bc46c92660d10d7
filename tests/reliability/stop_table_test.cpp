// Stop signals by process and launch method: each saves the step that was reached and exits with 75. What a terminal, a
// logout, a shutdown and a service manager send, in the orders in which they do.
#include <signal.h>
#include <unistd.h>

#include "checkpoint/store/steps.h"
#include "kernels/core/check.h"
#include "launch/ranks/signals.h"
#include "tests/launch/process.h"
#include "tests/launch/rank_processes.h"
#include "tests/support/goal.h"
#include "tests/support/paths.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

const std::string kRun =
    "--model.layers 2 --model.hidden 16 --model.heads 2 --model.vocab 64 --model.seq 8 --data.train mock "
    "--train.global_batch 4 --train.micro_batch 1 --device.kind cpu --device.threads 1 --log.tensorboard false "
    "--schedule.type constant --train.steps 1000000 --checkpoint.every 0 --log.name x ";

enum class To { kStarted, kForking, kRank, kAll };
constexpr const char* kTo[] = {"the process that was started", "the one that forks the ranks", "one rank", "all"};

struct Way {
  const char* words;
  std::vector<To> targets;
};
const std::vector<Way> kWays = {{"", {To::kStarted}},
                                {"--pp 2 --launch.ranks threads", {To::kStarted}},
                                {"--tp 2", {To::kStarted, To::kForking, To::kRank, To::kAll}},
                                {"--launch.max_restarts 2", {To::kStarted, To::kForking, To::kAll}},
                                {"--tp 2 --launch.max_restarts 2", {To::kStarted, To::kForking, To::kRank, To::kAll}}};

std::vector<int> all_of(int pid) {
  std::vector<int> all{pid};
  for (size_t i = 0; i < all.size(); ++i)
    for (const int child : children(all[i])) all.push_back(child);
  return all;
}

std::vector<int> targets(int pid, To to) {
  switch (to) {
    case To::kStarted: return {pid};
    case To::kForking: return children(pid);
    case To::kRank: return {process_of(pid, 1)};
    default: return all_of(pid);
  }
}

void send_all(const std::vector<int>& pids, int n) {
  for (const int pid : pids) send_signal(pid, n);
}

std::string text(const std::vector<int>& signals) {
  std::string out;
  for (const int n : signals) out += cat(out.empty() ? "" : ", ", signal_name(n));
  return out;
}

// The newest checkpoint is that of the last step in the log.
void check_saved(const Outcome& r, const TempDir& dir) {
  CHECK(r.code == 75);
  const auto steps = list_steps(dir / "runs/x/checkpoints");
  REQUIRE(!steps.empty());
  CHECK(steps.front().first == static_cast<int64_t>(logged(dir / "runs/x", "loss").size()));
  CHECK(left_behind(dir.path(), {}) == "");
}

// Sends the signals, `pause_ms` apart, once the run has made two steps.
void check_stops(const std::string& words, To to, const std::vector<int>& signals, int pause_ms) {
  TempDir dir;
  const Outcome r = gpttrain(kRun + words, dir.path(), 100, [&](int pid) {
    wait_for_step(dir / "runs/x/log.jsonl", 2);
    const std::vector<int> pids = targets(pid, to);
    for (const int n : signals) {
      send_all(pids, n);
      if (&n != &signals.back()) usleep(static_cast<useconds_t>(1000 * pause_ms));
    }
  });
  INFO(words << ": " << text(signals) << " to " << kTo[static_cast<int>(to)] << "\n" << r.out);
  check_saved(r, dir);
}

}  // namespace

TEST_CASE("SIGHUP to any process of a job, however it was started, saves and exits 75", "[R14]") {
  for (const Way& way : kWays)
    for (const To to : way.targets) check_stops(way.words, to, {SIGHUP}, 0);
}

TEST_CASE("every stop signal, alone and after another, to any process of a job saves and exits 75", "[R14]") {
  const std::vector<std::vector<int>> sequences = {{SIGINT},          {SIGTERM},         {SIGUSR1},
                                                   {SIGTERM, SIGHUP}, {SIGHUP, SIGHUP},  {SIGHUP, SIGTERM},
                                                   {SIGINT, SIGHUP},  {SIGUSR1, SIGHUP}, {SIGHUP, SIGUSR1}};
  size_t next = 0;
  for (const Way& way : kWays)
    for (const To to : way.targets) {
      if (full_size())
        for (const auto& signals : sequences) check_stops(way.words, to, signals, 20);
      else
        for (int k = 0; k < 2; ++k) check_stops(way.words, to, sequences[next++ % sequences.size()], 20);
    }
}

TEST_CASE("a slow save after SIGHUP is not ended by the SIGTERM of a shutdown", "[R14]") {
  const std::string slow = "--fault.inject delay@step:rank=0,ms=2500 ";
  for (const std::string way : {"", "--tp 2", "--tp 2 --launch.max_restarts 2"}) {
    TempDir dir;
    const Outcome r = gpttrain(kRun + slow + way, dir.path(), 100, [&](int pid) {
      wait_for_step(dir / "runs/x/log.jsonl", 1);
      const std::vector<int> all = all_of(pid);
      kill(pid, SIGHUP);  // of the terminal's shell
      usleep(1300000);    // longer than two requests are apart
      send_all(all, SIGTERM);
      send_all(all, SIGHUP);
    });
    INFO(way << "\n" << r.out);
    check_saved(r, dir);
  }
}

TEST_CASE("SIGHUP to every process during the start loses nothing, during a save it is finished", "[R14]") {
  using Ready = std::function<bool(int pid, const TempDir&)>;
  const std::pair<const char*, Ready> phases[] = {
      {"fork", [](int pid, const TempDir&) { return !children(pid).empty(); }},
      {"ranks", [](int pid, const TempDir&) { return process_of(pid, 1) != 0; }},
      {"folder", [](int, const TempDir& dir) { return std::filesystem::exists(dir / "runs/x"); }}};
  for (const auto& [phase, ready] : phases) {
    TempDir dir;
    const Outcome r = gpttrain(kRun + "--tp 2", dir.path(), 100, [&](int pid) {
      wait_until(phase, [&] { return ready(pid, dir); });
      send_all(all_of(pid), SIGHUP);
      usleep(20000);
      send_all(all_of(pid), SIGHUP);
    });
    INFO(phase << "\n" << r.out);
    CHECK(r.code == 75);
    CHECK(left_behind(dir.path(), {}) == "");
  }
  TempDir dir;
  const Outcome r = gpttrain(kRun + "--tp 2 --checkpoint.every 1", dir.path(), 100, [&](int pid) {
    wait_for_step(dir / "runs/x/log.jsonl", 3);  // saving at every step keeps a save in progress
    send_all(all_of(pid), SIGHUP);
  });
  INFO(r.out);
  check_saved(r, dir);
  must("ckpt verify runs/x --all", dir);
}

TEST_CASE("under nohup SIGHUP to every process of a job is ignored", "[R14]") {
  for (const std::string way : {"--tp 2", "--tp 2 --launch.max_restarts 2"}) {
    TempDir dir;
    const Outcome r = shell("exec nohup " + binary_dir() + "/gpttrain " + kRun + way, dir.path(), 100, [&](int pid) {
      wait_for_step(dir / "runs/x/log.jsonl", 2);
      send_all(all_of(pid), SIGHUP);
      wait_for_step(dir / "runs/x/log.jsonl", static_cast<int64_t>(logged(dir / "runs/x", "loss").size()) + 20);
      kill(pid, SIGTERM);
    });
    INFO(way << "\n" << r.out);
    check_saved(r, dir);
    CHECK(logged(dir / "runs/x", "loss").size() >= 22);
  }
}

TEST_CASE("the ranks of a killed job end at once", "[R11]") {
  for (const To to : {To::kStarted, To::kForking}) {
    TempDir dir;
    const Outcome r = gpttrain(kRun + "--tp 2", dir.path(), 100, [&](int pid) {
      wait_for_step(dir / "runs/x/log.jsonl", 2);
      send_all(targets(pid, to), SIGKILL);
    });
    INFO(r.out);
    CHECK(r.code == 128 + SIGKILL);
    wait_until("its processes end", [&] { return left_behind(dir.path(), {}).empty(); });
  }
}

TEST_CASE("a second SIGTERM or SIGINT ends a job at once, a SIGHUP before it does not count", "[R14]") {
  const std::string slow = "--fault.inject delay@step:rank=0,ms=20000 --tp 2 ";
  for (const int n : {SIGINT, SIGTERM}) {
    TempDir dir;
    const Outcome r = gpttrain(kRun + slow, dir.path(), 60, [&](int pid) {
      wait_until("the run's folder", [&] { return std::filesystem::exists(dir / "runs/x/config.json"); });
      wait_until("its ranks", [&] { return process_of(pid, 1) != 0; });
      for (int k = 0; k < 2; ++k) {
        kill(pid, n);
        usleep(1300000);
      }
    });
    INFO(r.out);
    CHECK((r.code == 128 + n || r.code == 75));  // 75: the first one came before the first step
    wait_until("its processes end", [&] { return left_behind(dir.path(), {}).empty(); });
  }
  CHECK_FALSE(precedes_second_request(SIGHUP));
  for (const int n : {SIGINT, SIGTERM, SIGUSR1}) CHECK(precedes_second_request(n));
}

TEST_CASE("ranks that the user's mpirun starts save on SIGHUP, to one or to all of them", "[R14]") {
  if (shell("mpirun --allow-run-as-root --version", "/tmp").code != 0) return report_partly_skipped("no mpirun");
  for (const bool all : {false, true}) {
    TempDir dir;
    const std::string start = "exec mpirun --allow-run-as-root --oversubscribe --bind-to none -n 2 ";
    const Outcome r = shell(start + binary_dir() + "/gpttrain " + kRun + "--tp 2", dir.path(), 100, [&](int pid) {
      wait_for_step(dir / "runs/x/log.jsonl", 2);
      const std::vector<int> ranks = children(pid);
      if (all) send_all(ranks, SIGHUP);
      if (!all && !ranks.empty()) send_signal(ranks.back(), SIGHUP);
    });
    INFO(r.out);
    check_saved(r, dir);
  }
}

// Its own code for SIGTERM is 1, whatever its ranks return. It waits, signals them, waits again and kills them.
TEST_CASE("the user's mpirun returns 75 for SIGUSR1, and for SIGTERM its ranks save in the time that it gives them",
          "[R14]") {
  if (shell("mpirun --allow-run-as-root --version", "/tmp").code != 0) return report_partly_skipped("no mpirun");
  for (const int n : {SIGUSR1, SIGTERM}) {
    TempDir dir;
    const std::string start = "exec mpirun --allow-run-as-root --oversubscribe --bind-to none -n 2 ";
    const std::string time = n == SIGTERM ? "--mca odls_base_sigkill_timeout 4 " : "";
    Outcome r = shell(start + time + binary_dir() + "/gpttrain " + kRun + "--tp 2", dir.path(), 100, [&](int pid) {
      wait_for_step(dir / "runs/x/log.jsonl", 1);
      kill(pid, n);
    });
    INFO(signal_name(n) << "\n" << r.out);
    CHECK(r.code == (n == SIGUSR1 ? 75 : 1));
    r.code = 75;
    check_saved(r, dir);
  }
}

TEST_CASE("a console that goes away does not end a run: it trains to its last step", "[R14]") {
  const std::string short_run =
      "--model.layers 2 --model.hidden 16 --model.heads 2 --model.vocab 64 --model.seq 8 --data.train mock "
      "--train.global_batch 4 --train.micro_batch 1 --device.kind cpu --device.threads 1 --log.tensorboard false "
      "--schedule.type constant --train.steps 300 --checkpoint.every 100 --log.name x ";
  for (const std::string way :
       {"", "--pp 2 --launch.ranks threads", "--tp 2", "--tp 2 --launch.max_restarts 2", "2>&1", "--tp 2 2>&1"}) {
    TempDir dir;
    const std::string command = "{ " + binary_dir() + "/gpttrain " + short_run + way + "; echo $? >code; } | head -3";
    const Outcome r = shell(command, dir.path(), 100);
    INFO(way << "\n" << r.out);
    CHECK(read_file(dir / "code") == "0\n");
    CHECK(logged(dir / "runs/x", "loss").size() == 300);
    CHECK(list_steps(dir / "runs/x/checkpoints").front().first == 300);
  }
}

TEST_CASE("closed standard descriptors are those of no file of the run", "[R14]") {
  const std::string short_run =
      "--model.layers 1 --model.hidden 16 --model.heads 2 --model.vocab 64 --model.seq 8 --data.train mock "
      "--train.global_batch 4 --train.micro_batch 1 --device.kind cpu --device.threads 1 --schedule.type constant "
      "--train.steps 6 --checkpoint.every 3 --log.name x ";
  for (const std::string way : {"", "--dp 2 --launch.ranks threads", "--tp 2", "--launch.max_restarts 2 --tp 2"})
    for (const std::string closed : {"<&- >&- 2>&-", "<&- >&-", "<&-", "2>&-"}) {
      if (!way.empty() && closed.size() < 9) continue;
      TempDir dir;
      const Outcome r = gpttrain(short_run + way + " " + closed, dir.path(), 60);
      INFO(way << " " << closed << "\n" << r.out);
      CHECK(r.code == 0);
      std::istringstream log(read_file(dir / "runs/x/log.jsonl"));
      int lines = 0;
      for (std::string line; std::getline(log, line); ++lines) CHECK_THAT(line, Catch::StartsWith("{\"type\""));
      CHECK(lines >= 8);
      must("ckpt verify runs/x --all", dir);
    }
}
