#include "launch/ranks/start/local_ranks.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "kernels/core/check.h"
#include "launch/ranks/signals.h"
#include "parallel/comm/watch/node_link.h"

namespace gt {
namespace {

using Clock = std::chrono::steady_clock;
// After a death: the other ranks' monitors report it. After an error: they end by themselves.
constexpr auto kAfterDeath = std::chrono::seconds(2), kAfterError = std::chrono::seconds(5);

class LocalRanks {
 public:
  LocalRanks(int world, const std::vector<std::string>& words, const sigset_t& mask)
      : words_(words), mask_(mask), pids_(static_cast<size_t>(world), 0) {
    sigemptyset(&signals_);
    for (const int n : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGCHLD}) sigaddset(&signals_, n);
    if (!ignores_hangup()) sigaddset(&signals_, SIGHUP);
    sigprocmask(SIG_BLOCK, &signals_, nullptr);
  }

  int run() {
    start();
    while (reap()) {
      const timespec tick{0, 200'000'000};  // SIGCHLD ends it
      take_signal(sigtimedwait(&signals_, nullptr, &tick));
      if (Clock::now() > deadline_) kill_all();
    }
    return code_;
  }

 private:
  void start() {
    const std::string world = std::to_string(pids_.size());
    for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) setenv(name, world.c_str(), 1);
    setenv("MASTER_ADDR", "localhost", 1);
    setenv("MASTER_PORT", "29500", 1);  // part of the job's name, not opened
    setenv("TORCHELASTIC_RUN_ID", random_word().c_str(), 1);
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    const pid_t parent = getpid();
    for (size_t rank = 0; rank < pids_.size(); ++rank) {
      for (const char* name : {"RANK", "LOCAL_RANK"}) setenv(name, std::to_string(rank).c_str(), 1);
      pids_[rank] = fork();
      if (pids_[rank] == 0) become_rank(parent);
      if (pids_[rank] > 0) continue;
      fmt::print(stderr, "gpttrain: rank {} cannot be started: {}\n", rank, std::strerror(errno));
      code_ = static_cast<int>(Exit::kIo);
      return kill_all();
    }
  }

  [[noreturn]] void become_rank(pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(128 + SIGKILL);  // it died before PR_SET_PDEATHSIG took effect
    sigprocmask(SIG_SETMASK, &mask_, nullptr);
    std::vector<char*> argv;
    for (const std::string& word : words_) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    fmt::print(stderr, "gpttrain: {} cannot be run: {}\n", words_[0], std::strerror(errno));
    _exit(127);
  }

  // Takes the exit codes of all ranks that have ended; returns whether any is left. Of ranks that failed at once, one
  // that died of a signal is the cause.
  bool reap() {
    int failed = 0;
    bool died = false;
    for (int status, pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
      const auto rank = std::find(pids_.begin(), pids_.end(), pid);
      if (rank == pids_.end()) continue;
      *rank = 0;
      const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      if (failed == 0 || (WIFSIGNALED(status) && !died)) failed = code, died = WIFSIGNALED(status);
    }
    if (failed != 0 && code_ == 0) code_ = failed, deadline_ = Clock::now() + (died ? kAfterDeath : kAfterError);
    return std::any_of(pids_.begin(), pids_.end(), [](pid_t p) { return p > 0; });
  }

  void take_signal(int n) {
    if (n == SIGHUP) drop_dead_console();
    if (n > 0 && n != SIGCHLD) send(n == SIGUSR2 ? SIGUSR2 : SIGUSR1);
  }

  void kill_all() {
    deadline_ = Clock::time_point::max();
    send(SIGKILL);
  }

  void send(int n) const {
    for (const pid_t p : pids_)
      if (p > 0) kill(p, n);
  }

  const std::vector<std::string>& words_;
  const sigset_t& mask_;
  sigset_t signals_;
  std::vector<pid_t> pids_;  // by rank; 0: not started, or ended
  int code_ = 0;
  Clock::time_point deadline_ = Clock::time_point::max();
};

}  // namespace

int run_local_ranks(int world, const std::vector<std::string>& words, const sigset_t& mask) {
  return LocalRanks(world, words, mask).run();
}

}  // namespace gt
