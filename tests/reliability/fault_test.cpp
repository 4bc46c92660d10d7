// Real processes stop or die: the right one is named, the run exits with the right code, nothing is left behind.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "kernels/core/check.h"
#include "kernels/core/host.h"
#include "tests/launch/process.h"
#include "tests/launch/rank_processes.h"
#include "tests/support/goal.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

const std::string kRun =
    "--model.layers 4 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
    "--train.global_batch 8 --train.micro_batch 1 --device.kind cpu --log.tensorboard false --train.steps 1000000 "
    "--checkpoint.every 0 --log.every 1000 --log.name x ";

std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Sends signal `n` to that rank once a few steps are in the log.
std::function<void(int)> once_it_trains(const std::string& log, int rank, int n, std::vector<int>& ranks) {
  return [=, &ranks](int pid) {
    wait_for_step(log, 5);
    for (int r = 0; r < 4; ++r) ranks.push_back(process_of(pid, r));
    if (ranks[static_cast<size_t>(rank)] > 0) kill(ranks[static_cast<size_t>(rank)], n);
  };
}

// Checks that neither processes nor shared memory of these ranks remain.
void check_nothing_left(const std::vector<int>& pids) {
  REQUIRE(pids.size() == 4);
  for (int pid : pids) {
    // Orphans that have ended are zombies until init has waited for them.
    for (int i = 0; i < 250 && pid > 0 && kill(pid, 0) == 0; ++i) usleep(20000);
    CHECK((pid > 0 && kill(pid, 0) != 0));
    std::error_code ec;
    for (const auto& e : std::filesystem::directory_iterator("/dev/shm", ec))
      CHECK(e.path().filename().string().rfind(cat("gpttrain-", pid, "-"), 0) != 0);
  }
}

const char* const kCoordinates[] = {"pp0 dp0 tp0", "pp0 dp0 tp1", "pp1 dp0 tp0", "pp1 dp0 tp1"};

}  // namespace

TEST_CASE("a stopped process is named, whichever rank it is, and the run ends with 124", "[R12]") {
  for (int rank = 0; rank < 4; ++rank) {
    TempDir dir;
    std::vector<int> pids;
    const Outcome r = gpttrain(kRun + "--tp 2 --pp 2 --comm.stall_warn_s 4 --comm.stall_abort_s 5", dir.path(), 100,
                               once_it_trains(dir / "runs/x/log.jsonl", rank, SIGSTOP, pids));
    INFO(r.out);
    CHECK(r.code == 124);
    CHECK(r.prints(cat("stalled: not arrived: rank ", rank, "\n")));
    CHECK(r.prints(
        cat("pid ", pids[static_cast<size_t>(rank)], ", ", kCoordinates[rank], "): frozen, no sign of life for")));
    CHECK(r.prints("last call: "));
    CHECK(r.prints("has waited 4."));
    CHECK(r.prints("hang: the run ends"));
    CHECK(std::count(r.out.begin(), r.out.end(), '\n') < 60);  // one report, not one per rank
    int rings = 0;
    for (const auto& run : std::filesystem::directory_iterator(dir / "runs/x"))
      if (run.path().filename().string().rfind("hang-", 0) == 0)
        for (const auto& f : std::filesystem::directory_iterator(run.path()))
          rings += f.path().filename().string().rfind("rank-", 0) == 0 && std::filesystem::file_size(f) > 1000;
    CHECK(rings == 4);
    check_nothing_left(pids);
  }
}

TEST_CASE("a process that stops while it saves is named and ends the run as one that stops in a step", "[R12]") {
  TempDir dir;
  const Outcome r = gpttrain(kRun + "--tp 2 --comm.stall_warn_s 4 --comm.stall_abort_s 5 --checkpoint.every 4 " +
                                 "--fault.inject stop@save:rank=1,step=8",
                             dir.path(), 100);
  INFO(r.out);
  CHECK(r.code == 124);
  CHECK(r.prints("stalled: not arrived: rank 1\n"));
  CHECK(r.prints("frozen, no sign of life for"));
  CHECK(r.prints("hang: the run ends"));
}

TEST_CASE("a killed rank ends the run at once, is named with its rank coordinates, and leaves nothing behind",
          "[R11]") {
  for (int rank : {0, 3}) {
    TempDir dir;
    std::vector<int> pids;
    const Outcome r = gpttrain(kRun + "--tp 2 --pp 2", dir.path(), 100,
                               once_it_trains(dir / "runs/x/log.jsonl", rank, SIGKILL, pids));
    INFO(r.out);
    CHECK(r.code == 128 + SIGKILL);
    CHECK(r.prints(cat("pid ", pids[static_cast<size_t>(rank)], ", ", kCoordinates[rank], ") died")));
    check_nothing_left(pids);
  }
}

TEST_CASE("a killed rank is named by the process that started it when no other rank can", "[R11]") {
  TempDir dir;
  std::vector<int> pids;
  const Outcome r = gpttrain(kRun + "--tp 2 --pp 2", dir.path(), 100, [&](int pid) {
    once_it_trains(dir / "runs/x/log.jsonl", 0, 0, pids)(pid);
    for (const int other : {0, 1, 3}) send_signal(pids[static_cast<size_t>(other)], SIGSTOP);
    send_signal(pids[2], SIGKILL);
  });
  INFO(r.out);
  CHECK(r.code == 128 + SIGKILL);
  CHECK(r.prints(cat("gpttrain: rank 2 (", host_name(), " pid ", pids[2], ", pp1 dp0 tp0) died of SIGKILL\n")));
  check_nothing_left(pids);
}

TEST_CASE("a crashing rank reports location, cause and stack, and ends with the code of that crash", "[R11]") {
  struct Crash {
    std::string how, text;
    int code;
  };
  for (const Crash& c :
       {Crash{"segv", "SIGSEGV at address 0x", 128 + SIGSEGV}, Crash{"abort", "SIGABRT", 128 + SIGABRT},
        Crash{"terminate", "uncaught exception: fault.inject terminate", 70}})
    for (const std::string layout : {"--tp 2", "--tp 2 --launch.ranks threads"}) {
      if (kSanitized && c.how != "terminate") continue;  // the sanitizer installs its own handlers
      TempDir dir;
      const Outcome r = gpttrain(kRun + layout + " --fault.inject " + c.how + "@step:rank=1,step=3", dir.path(), 100);
      INFO(layout << "\n" << r.out);
      CHECK(r.code == c.code);
      CHECK(r.prints(c.text));
      const bool outside = c.how == "terminate" && layout != "--tp 2";  // the rank of the failing thread is unknown
      CHECK(r.prints("rank 1 (") != outside);
      CHECK(r.prints("; step, step 3; last call: ") != outside);
      CHECK(r.prints(c.how == "terminate" ? "terminate_in_a_thread" : "gt::Trainer::run"));
    }
}

TEST_CASE("however a rank dies, the job ends soon, its rank coordinates are named and nothing is left", "[R11]") {
  const std::vector<std::pair<int, const char*>> ways = {{SIGKILL, "died"}, {SIGSEGV, "SIGSEGV"}, {SIGABRT, "SIGABRT"}};
  const int deaths = goal_size(kSanitized ? 1 : 4, 100);
  double longest = 0, sum = 0;
  int named = 0;
  for (int k = 0; k < deaths; ++k) {
    const auto& [n, text] = ways[static_cast<size_t>(k) % 3];
    const int rank = k * 7 % 4;
    TempDir dir;
    std::vector<int> pids;
    std::chrono::steady_clock::time_point begin;
    const Outcome r = gpttrain(kRun + "--tp 2 --pp 2", dir.path(), 100, [&, signal = n](int pid) {
      wait_for_step(dir / "runs/x/log.jsonl", 3);
      for (int q = 0; q < 4; ++q) pids.push_back(process_of(pid, q));
      begin = std::chrono::steady_clock::now();
      send_signal(pids[static_cast<size_t>(rank)], signal);
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    INFO(rank << " by signal " << n << "\n" << r.out);
    CHECK(r.code == 128 + n);
    CHECK(r.prints(text));
    CHECK(r.prints(kCoordinates[rank]));
    CHECK(left_behind(dir.path(), pids) == "");
    CHECK(seconds < 60);  // the goal is 5 s, which a busy machine may miss
    named += r.code == 128 + n && r.prints(kCoordinates[rank]);
    longest = std::max(longest, seconds);
    sum += seconds;
  }
  char times[64];
  std::snprintf(times, sizeof times, "%.2f s, longest %.2f s", sum / deaths, longest);
  print_figure("R11", cat(named, "/", deaths, " dead ranks named, nothing left; job down in ", times,
                          " (goal 5 s): ", longest <= 5 ? "met" : "MISSED"));
}

TEST_CASE("a stopped rank is named soon after the limit", "[R12]") {
  const int hangs = goal_size(kSanitized ? 1 : 2, 100);  // and four above
  double longest = 0;
  int right = 0;
  for (int k = 0; k < hangs; ++k) {
    const int rank = k * 3 % 4;
    TempDir dir;
    double seconds = -1;
    const std::string report = cat("stalled: not arrived: rank ", rank, "\n");
    // The default limit is max(10 s, 5 x p99 of the steps); in the default size mostly 5 s, to save time.
    const bool usual = k == 0 || full_size();
    const std::string limits = usual ? "--comm.stall_abort_s 11" : "--comm.stall_warn_s 5 --comm.stall_abort_s 6";
    const Outcome r = gpttrain(kRun + "--tp 2 --pp 2 " + limits + " 2>errors.txt", dir.path(), 200, [&](int pid) {
      wait_for_step(dir / "runs/x/log.jsonl", 25);
      const auto begin = std::chrono::steady_clock::now();
      send_signal(process_of(pid, rank), SIGSTOP);
      for (int i = 0; i < 10000 && seconds < 0; ++i) {
        usleep(10000);
        if (slurp(dir / "errors.txt").find("stalled: not arrived") != std::string::npos)
          seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      }
    });
    const std::string text = slurp(dir / "errors.txt");
    INFO(r.out << text);
    CHECK(r.code == 124);
    CHECK(text.find(report) != std::string::npos);
    right += text.find(report) != std::string::npos;
    longest = std::max(longest, seconds < 0 ? 1e9 : seconds);
  }
  char time[32];
  std::snprintf(time, sizeof time, "%.2f s", longest);
  print_figure("R12", cat(right, "/", hangs, " hung ranks named, the right one, after at most ", time,
                          " (goal 12 s): ", longest <= 12 && longest > 0 ? "met" : "MISSED"));
}

TEST_CASE("SIGUSR2 to a rank or to the launcher dumps the state of all ranks, with their stacks, and they continue",
          "[R12]") {
  for (const std::string layout : {"--tp 2 --pp 2", "--tp 2 --pp 2 --launch.ranks threads", "--tp 1"}) {
    const bool processes = layout == "--tp 2 --pp 2", alone = layout == "--tp 1";
    TempDir dir;
    std::vector<int> pids;
    const std::string log = dir / "runs/x/log.jsonl";
    const auto dumps = [&] {
      std::vector<std::string> out;
      for (const auto& e : std::filesystem::directory_iterator(dir / "runs/x"))
        if (e.path().filename().string().rfind("dump-", 0) == 0) out.push_back(e.path().string());
      return out;
    };
    const auto stacks = [&] {
      std::string text;
      for (const std::string& d : dumps())
        for (int r = 0; r < 4; ++r) text += slurp(cat(d, "/stack-", r, ".txt"));
      return text;
    };
    const Outcome r = gpttrain(kRun + layout, dir.path(), 100, [&](int pid) {
      once_it_trains(log, 0, 0, pids)(pid);
      send_signal(processes ? pids[2] : pid, SIGUSR2);
      const size_t needed = alone ? 1 : 4;
      for (int i = 0; i < 1000; ++i) {  // a stack from every rank, then more steps
        const std::string text = stacks();
        size_t ranks = 0;
        for (size_t at = 0; (at = text.find("rank ", at)) != std::string::npos; ++at) ++ranks;
        if (ranks >= needed) break;
        usleep(10000);
      }
      kill(pid, SIGUSR2);  // the launcher forwards it
      usleep(300000);
      kill(pid, SIGINT);
    });
    INFO(layout << "\n" << r.out);
    CHECK(r.code == 75);
    CHECK(r.prints("what the ranks on "));
    CHECK(r.prints("last calls and stacks: "));
    CHECK(r.prints(alone ? "pp0 dp0 tp0): runs, in no collective; step, step " : "pp1 dp0 tp1"));
    REQUIRE_FALSE(dumps().empty());
    const std::string text = stacks();
    INFO(text);
    for (int rank = 0; rank < (alone ? 1 : 4); ++rank) CHECK(text.find(cat("rank ", rank, "\n")) != std::string::npos);
    CHECK(text.find("gt::Trainer::run()") != std::string::npos);
    CHECK(slurp(dumps()[0] + "/slots-0.txt").find("rank 0 pid ") == 0);
  }
}

TEST_CASE("ranks end with the process that started them, and leave no shared memory", "[R11]") {
  for (const bool parent : {false, true}) {
    TempDir dir;
    std::vector<int> pids;
    const Outcome r = gpttrain(kRun + "--tp 2 --pp 2", dir.path(), 100, [&](int pid) {
      once_it_trains(dir / "runs/x/log.jsonl", 0, 0, pids)(pid);
      if (parent) {
        kill(pid, SIGKILL);
        for (int i = 0; i < 500 && left_behind(dir.path(), {}) != ""; ++i) usleep(20000);
      } else {
        for (const int launcher : children(pid)) kill(launcher, SIGSTOP), kill(launcher, SIGKILL);
      }
    });
    INFO(r.out);
    CHECK(r.code == 128 + SIGKILL);
    check_nothing_left(pids);
  }
}

TEST_CASE("four times more processes than processors raise no false alarm", "[R12]") {
  TempDir dir;
  // One rank pauses inside a save for longer than a step may take; a stop ends the run. Sanitized: shorter.
  const int pause = kSanitized ? 6 : 20, seconds_long = goal_size(40, 1800);
  const std::string run = cat(kRun, "--tp 2 --pp 2 --dp 2 --checkpoint.every 20 --fault.inject ",
                              "delay@save:rank=3,step=20,ms=", 1000 * pause);
  const auto begin = std::chrono::steady_clock::now();
  const Outcome r = kSanitized ? gpttrain(run + " --comm.stall_warn_s 4 --train.steps 40", dir.path(), 280)
                               : gpttrain(run, dir.path(), seconds_long + 600, [&](int pid) {
                                   for (int s = 0; s < seconds_long; ++s) sleep(1);
                                   kill(pid, SIGINT);
                                 });
  INFO(r.out);
  CHECK(r.code == (kSanitized ? 0 : 75));
  CHECK_FALSE(r.prints("stalled"));
  CHECK_FALSE(r.prints("died"));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  print_figure("R12",
               cat(r.prints("stalled") || r.prints("died") ? "a false alarm: MISSED" : "no false alarm", " in ",
                   static_cast<int>(seconds), " s of 8 ranks, one of them still inside a save for ", pause, " s"));
}
