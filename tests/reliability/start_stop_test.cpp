// External disturbances of jobs: foreign connections to their ports, a closed terminal, ranks that stop during startup,
// machines short of some resource.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "checkpoint/steps.h"
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

struct Listener {
  int port = 0;
  bool loopback = false, v6 = false;
};

// TCP sockets on which a process listens.
std::vector<Listener> listeners(int pid) {
  std::set<std::string> inodes;
  std::error_code ec;
  for (const auto& e : std::filesystem::directory_iterator(cat("/proc/", pid, "/fd"), ec)) {
    const std::string to = std::filesystem::read_symlink(e.path(), ec).string();
    if (to.rfind("socket:[", 0) == 0) inodes.insert(to.substr(8, to.size() - 9));
  }
  std::vector<Listener> out;
  for (const bool v6 : {false, true}) {
    std::ifstream in(v6 ? "/proc/net/tcp6" : "/proc/net/tcp");
    std::string line;
    for (std::getline(in, line); std::getline(in, line);) {
      std::istringstream words(line);
      std::string number, local, remote, state, skip, inode;
      words >> number >> local >> remote >> state;
      for (int i = 0; i < 5; ++i) words >> skip;
      words >> inode;
      if (state != "0A" || inodes.count(inode) == 0) continue;
      const size_t colon = local.find(':');
      const std::string address = local.substr(0, colon);
      out.push_back({std::stoi(local.substr(colon + 1), nullptr, 16),
                     address == "0100007F" || address == "00000000000000000000000001000000", v6});
    }
  }
  return out;
}

// Opens a connection with 18 bytes of another protocol and keeps it. -1: not accepted.
int foreign_connection(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const timeval wait{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);  // also limits connect
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0 &&
      write(fd, "GET / HTTP/1.0\r\n\r\n", 18) == 18)
    return fd;
  close(fd);
  return -1;
}

// Whether a connection stays open for two seconds.
bool stays_open(int fd) {
  if (fd < 0) return false;
  const timeval wait{2, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
  char byte;
  return recv(fd, &byte, 1, 0) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

// Whether this system allows a process to take over sockets of its children.
bool may_take_sockets() {
  const int process = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
  const int fd = static_cast<int>(syscall(SYS_pidfd_getfd, process, 0, 0));
  if (fd >= 0) close(fd);
  close(process);
  return fd >= 0;
}

}  // namespace

TEST_CASE("ranks of one machine listen on loopback only, foreign connections are not accepted and stall nothing",
          "[R30]") {
  TempDir dir;
  const std::string log = dir / "runs/x/log.jsonl";
  int ranks = 0;
  std::vector<int> foreign;
  const Outcome r = gpttrain(kRun + "--tp 2", dir.path(), 100, [&](int pid) {
    if (!wait_for_step(log, 3)) return;
    for (int k = 0; k < 2; ++k)
      if (const int rank = process_of(pid, k); rank > 0) {
        ++ranks;
        for (const Listener& l : listeners(rank)) CHECK(l.loopback);
      }
    for (const int mpirun : children(pid))
      for (const Listener& l : listeners(mpirun)) {
        const int fd = foreign_connection(l.port);
        CHECK((l.loopback || !stays_open(fd) || !may_take_sockets()));
        foreign.push_back(fd);
      }
    const auto before = static_cast<int64_t>(logged(dir / "runs/x", "loss").size());
    CHECK(wait_for_step(log, before + 20));
    kill(pid, SIGTERM);
  });
  for (const int fd : foreign)
    if (fd >= 0) close(fd);
  INFO(r.out);
  CHECK(ranks == 2);
  CHECK(!foreign.empty());
  CHECK(r.code == 75);
}

TEST_CASE("foreign connections to mpirun's ports before the first rank exists are closed and the run starts", "[R30]") {
  if (!may_take_sockets()) GT_SKIP("this system does not let a process take sockets of its children");
  int accepted = 0;
  for (int attempt = 0; attempt < 20 && accepted == 0; ++attempt) {
    TempDir dir;
    std::map<int, int> foreign;  // by port
    const Outcome r = gpttrain(kRun + "--tp 2 --launch.start_timeout_s 30", dir.path(), 100, [&](int pid) {
      bool stopped = false;  // the launcher, so that connections precede its next look
      for (int i = 0; i < 4000 && process_of(pid, 0) == 0 && foreign.size() < 2; ++i) {
        for (const int mpirun : children(pid)) {
          if (!stopped) stopped = kill(pid, SIGSTOP) == 0;
          for (const Listener& l : listeners(mpirun))
            if (!l.loopback && foreign.count(l.port) == 0) foreign[l.port] = foreign_connection(l.port);
        }
        usleep(500);
      }
      kill(pid, SIGCONT);
      if (wait_for_step(dir / "runs/x/log.jsonl", 3)) kill(pid, SIGTERM);
    });
    for (const auto& [port, fd] : foreign)
      if (fd >= 0) ++accepted, close(fd);
    INFO(r.out);
    REQUIRE(r.code == 75);
  }
  CHECK(accepted > 0);
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

TEST_CASE("a stop signal to mpirun alone is one to the job", "[R14]") {
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

TEST_CASE("a rank that stops between fork and exec, where mpirun waits for it, is named too", "[R12]") {
  TempDir dir;
  write_file(dir / "mpirun",
             "#!/bin/sh\nsleep 1000 &\nkill -STOP $!\nwait\n");  // one child, without a rank's variables
  std::filesystem::permissions(dir / "mpirun", std::filesystem::perms::owner_all);
  const Outcome r = shell("PATH=" + dir.path() + ":$PATH exec " + binary_dir() + "/gpttrain " + kRun +
                              "--tp 2 --comm.stall_abort_s 3 --launch.start_timeout_s 60",
                          dir.path());
  INFO(r.out);
  CHECK(r.code == 124);
  CHECK_THAT(r.out, Contains(cat("rank 0 (", host_name(), " pid ")) && Contains("is stopped"));
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
  CHECK_THAT(files.out, Contains("ulimit -n") && Contains("80"));
  const std::string small = "unshare -m sh -c 'mount -t tmpfs -o size=8m none /dev/shm && exec " + program + "'";
  if (shell("unshare -m mount -t tmpfs none /dev/shm", dir.path()).code != 0) {
    WARN("no mount namespace to be had here: a small /dev/shm is not tried");
    return;
  }
  const Outcome shm = shell(small, dir.path(), 60);
  INFO(shm.out);
  CHECK(shm.code == 2);
  CHECK_THAT(shm.out, Contains("/dev/shm has") && Contains("--launch.ranks threads"));
}
