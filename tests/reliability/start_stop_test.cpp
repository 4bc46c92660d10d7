// External disturbances of jobs: foreign connections to their ports, a closed terminal, ranks that stop during startup,
// machines short of some resource.
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <sstream>

#include "checkpoint/store/steps.h"
#include "kernels/core/check.h"
#include "kernels/core/host.h"
#include "tests/launch/process.h"
#include "tests/launch/rank_processes.h"
#include "tests/support/paths.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

const std::string kRun =
    "--model.layers 4 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
    "--train.global_batch 8 --train.micro_batch 1 --device.kind cpu --log.tensorboard false --train.steps 1000000 "
    "--schedule.type constant --checkpoint.every 0 --log.name x ";

// Number of TCP sockets on which a process listens.
int tcp_listeners(int pid) {
  std::set<std::string> inodes;
  std::error_code ec;
  for (const auto& e : std::filesystem::directory_iterator(cat("/proc/", pid, "/fd"), ec)) {
    const std::string to = std::filesystem::read_symlink(e.path(), ec).string();
    if (to.rfind("socket:[", 0) == 0) inodes.insert(to.substr(8, to.size() - 9));
  }
  CHECK(!inodes.empty());  // its own sockets: of other ranks
  int out = 0;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(table);
    std::string line;
    for (std::getline(in, line); std::getline(in, line);) {
      std::istringstream words(line);
      std::string state, skip, inode;
      words >> skip >> skip >> skip >> state;
      for (int i = 0; i < 5; ++i) words >> skip;
      words >> inode;
      out += state == "0A" && inodes.count(inode) != 0;
    }
  }
  return out;
}

}  // namespace

TEST_CASE("ranks of one machine open no port", "[R30]") {
  TempDir dir;
  int ranks = 0;
  const Outcome r = gpttrain(kRun + "--tp 2", dir.path(), 100, [&](int pid) {
    if (!wait_for_step(dir / "runs/x/log.jsonl", 3)) return;
    for (int k = 0; k < 2; ++k)
      if (const int rank = process_of(pid, k); rank > 0) {
        ++ranks;
        CHECK(tcp_listeners(rank) == 0);
      }
    kill(pid, SIGTERM);
  });
  INFO(r.out);
  CHECK(ranks == 2);
  CHECK(r.code == 75);
}

TEST_CASE("a closed terminal saves in every launch mode, nohup is left alone", "[R14]") {
  for (const std::string way : {"", "--pp 2 --launch.ranks threads", "--tp 2", "--launch.max_restarts 2"}) {
    TempDir dir;
    const Outcome r = gpttrain(kRun + way, dir.path(), 100, [&](int pid) {
      wait_for_step(dir / "runs/x/log.jsonl", 2);
      kill(pid, SIGHUP);
      usleep(20000);
      kill(pid, SIGHUP);  // the shell and the kernel each send one
    });
    INFO(way << "\n" << r.out);
    CHECK(r.code == 75);
    const auto steps = list_steps(dir / "runs/x/checkpoints");
    REQUIRE(!steps.empty());
    CHECK(steps.front().first == static_cast<int64_t>(logged(dir / "runs/x", "loss").size()));
  }
  TempDir dir;
  const Outcome kept = shell("exec nohup " + binary_dir() + "/gpttrain " + kRun, dir.path(), 100, [&](int pid) {
    wait_for_step(dir / "runs/x/log.jsonl", 2);
    kill(pid, SIGHUP);
    CHECK(wait_for_step(dir / "runs/x/log.jsonl", static_cast<int64_t>(logged(dir / "runs/x", "loss").size()) + 20));
    kill(pid, SIGTERM);
  });
  INFO(kept.out);
  CHECK(kept.code == 75);
}

TEST_CASE("a stop signal that reaches every process of a job more than once still saves", "[R14]") {
  const std::string slow = "--fault.inject delay@step:rank=0,ms=2500 ";
  for (const std::string way : {"", "--pp 2 --launch.ranks threads", "--tp 2", "--tp 2 --launch.max_restarts 2"}) {
    TempDir dir;
    const Outcome r = gpttrain(kRun + slow + way, dir.path(), 100, [&](int pid) {
      wait_for_step(dir / "runs/x/log.jsonl", 2);
      std::vector<int> all{pid};  // as service managers and timeout(1) do
      for (size_t i = 0; i < all.size(); ++i)
        for (const int child : children(all[i])) all.push_back(child);
      CHECK(all.size() == (way.find("--tp") == std::string::npos ? 1 : 4));
      for (const int p : all) CHECK(send_signal(p, SIGTERM));
      usleep(20000);
      for (const int p : all) send_signal(p, SIGTERM);
    });
    INFO(way << "\n" << r.out);
    CHECK(r.code == 75);
    const auto steps = list_steps(dir / "runs/x/checkpoints");
    REQUIRE(!steps.empty());
    CHECK(steps.front().first == static_cast<int64_t>(logged(dir / "runs/x", "loss").size()));
    CHECK(left_behind(dir.path(), {}) == "");
  }
}

TEST_CASE("a stop signal to the process that started the ranks is one to the job", "[R14]") {
  for (const int n : {SIGTERM, SIGINT}) {
    TempDir dir;
    const Outcome r = gpttrain(kRun + "--tp 2", dir.path(), 100, [&](int pid) {
      wait_for_step(dir / "runs/x/log.jsonl", 2);
      for (const int child : children(pid)) send_signal(child, n);
    });
    INFO(r.out);
    CHECK(r.code == 75);
    const auto steps = list_steps(dir / "runs/x/checkpoints");
    REQUIRE(!steps.empty());
    CHECK(steps.front().first == static_cast<int64_t>(logged(dir / "runs/x", "loss").size()));
    CHECK(left_behind(dir.path(), {}) == "");
  }
}

TEST_CASE("a rank that stops during startup is named and ends the job with 124", "[R12]") {
  TempDir dir;
  int stopped = 0;
  const Outcome r = gpttrain(kRun + "--tp 2 --comm.stall_abort_s 3", dir.path(), 100, [&](int pid) {
    for (int i = 0; i < 30000 && stopped == 0; ++i) {
      stopped = process_of(pid, 1);
      usleep(1000);
    }
    send_signal(stopped, SIGSTOP);
  });
  INFO(r.out);
  REQUIRE(stopped > 0);
  CHECK(r.code == 124);
  CHECK_THAT(r.out, Contains(cat("pid ", stopped)) && Contains("is stopped"));
  CHECK(left_behind(dir.path(), {stopped}) == "");
}

TEST_CASE("all ranks stopped at once: their parent reports it and ends the job", "[R12]") {
  TempDir dir;
  const Outcome r = gpttrain(kRun + "--tp 2 --comm.stall_abort_s 3", dir.path(), 100, [&](int pid) {
    wait_for_step(dir / "runs/x/log.jsonl", 3);
    for (int k = 0; k < 2; ++k) send_signal(process_of(pid, k), SIGSTOP);
  });
  INFO(r.out);
  CHECK(r.code == 124);
  CHECK_THAT(r.out, Contains("all ranks of this machine"));
}

TEST_CASE("insufficient resources of a machine are reported before anything starts", "[R14]") {
  TempDir dir;
  const std::string program = binary_dir() + "/gpttrain " + kRun + "--tp 2 --pp 2";
  const Outcome files = shell("ulimit -n 40; exec " + program, dir.path(), 60);
  INFO(files.out);
  CHECK(files.code == 2);
  CHECK_THAT(files.out, Contains("ulimit -n") && Contains("68"));
  const std::string small = "unshare -m sh -c 'mount -t tmpfs -o size=8m none /dev/shm && exec " + program + "'";
  if (shell("unshare -m mount -t tmpfs none /dev/shm", dir.path()).code != 0) {
    report_partly_skipped("a small /dev/shm: this system permits no mount namespace");
    return;
  }
  const Outcome shm = shell(small, dir.path(), 60);
  INFO(shm.out);
  CHECK(shm.code == 2);
  CHECK_THAT(shm.out, Contains("/dev/shm has") && Contains("--launch.ranks threads"));
}

TEST_CASE("a small stack, a limit of file sizes and a missing /proc end no run without a reason", "[R14]") {
  const std::string program = binary_dir() + "/gpttrain " + kRun + "--train.steps 6 --checkpoint.every 3 ";
  {
    TempDir dir;
    const Outcome stack = shell("ulimit -s 64; exec " + program, dir.path(), 60);
    INFO(stack.out);
    CHECK((stack.code == 0 || (stack.code == 2 && stack.prints("the stack is limited to 64 KiB"))));
  }
  {
    TempDir dir;
    const Outcome size = shell("ulimit -f 20; exec " + program, dir.path(), 60);
    INFO(size.out);
    CHECK(size.code == 74);  // and not the signal's
    CHECK(size.prints("no checkpoint of it could be written"));
  }
  TempDir dir;
  if (shell("unshare -m mount -t tmpfs none /proc", dir.path()).code != 0)
    return report_partly_skipped("without /proc: this system permits no mount namespace");
  const std::string inside = "unshare -m sh -c 'mount -t tmpfs none /proc && exec " + program + "--tp 2'";
  const Outcome without = shell(inside, dir.path(), 60);
  INFO(without.out);
  CHECK(without.code == 0);
  CHECK(list_steps(dir / "runs/x/checkpoints").front().first == 6);
}
