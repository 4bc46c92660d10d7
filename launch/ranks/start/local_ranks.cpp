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
#include "launch/ranks/start/launcher_output.h"
#include "launch/ranks/start/start_watch.h"
#include "parallel/comm/watch/node_link.h"

namespace gt {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kNoProgram = 127;  // exit code of a rank whose program cannot be run
// After a death: the other ranks' monitors report it. After an error: they end by themselves.
constexpr auto kAfterDeath = std::chrono::seconds(2), kAfterError = std::chrono::seconds(5);

class LocalRanks {
 public:
  LocalRanks(const LocalJob& job, const std::vector<std::string>& words, const sigset_t& mask)
      : job_(job), words_(words), mask_(mask), pids_(static_cast<size_t>(job.count), 0) {
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
      take_requests();
      if (Clock::now() > deadline_) kill_all();
    }
    return code_;
  }

 private:
  void start() {
    setenv("WORLD_SIZE", std::to_string(job_.world).c_str(), 1);
    setenv("LOCAL_WORLD_SIZE", std::to_string(job_.count).c_str(), 1);
    if (job_.count == job_.world) {
      setenv("MASTER_ADDR", "localhost", 1);
      setenv("MASTER_PORT", "29500", 1);  // part of the job's name, not opened
      setenv("TORCHELASTIC_RUN_ID", random_word().c_str(), 1);
      unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    }
    const pid_t parent = getpid();
    for (size_t rank = 0; rank < pids_.size(); ++rank) {
      setenv("RANK", std::to_string(job_.first + static_cast<int>(rank)).c_str(), 1);
      setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
      pids_[rank] = fork();
      if (pids_[rank] == 0) become_rank(parent);
      if (pids_[rank] > 0) continue;
      fmt::print(stderr, "gpttrain: rank {} cannot be started: {}\n", job_.first + static_cast<int>(rank),
                 std::strerror(errno));
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
    _exit(kNoProgram);
  }

  // Takes the exit codes of all ranks that have ended; returns whether any is left. Of ranks that failed at once, one
  // that died of a signal is the cause.
  bool reap() {
    int failed = 0;
    for (int status, pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
      const auto found = std::find(pids_.begin(), pids_.end(), pid);
      if (found == pids_.end()) continue;
      *found = 0;
      const int rank = job_.first + static_cast<int>(found - pids_.begin());
      if (WIFSIGNALED(status)) {
        take_death(rank, pid, WTERMSIG(status));
        continue;
      }
      const int code = WEXITSTATUS(status);
      if (!is_code_of_program(code) && code != kNoProgram)  // a library called exit()
        report_end(rank, pid, cat("ended with exit code ", code, ", which is none of gpttrain's"));
      if (failed == 0) failed = code;
    }
    if (failed != 0) take_failure(failed, kAfterError);
    return std::any_of(pids_.begin(), pids_.end(), [](pid_t p) { return p > 0; });
  }

  // A rank whose sockets the kernel has closed may still be exiting: another rank's error about it can come first.
  void take_death(int rank, pid_t pid, int n) {
    if (killed_) return;  // by this process
    const std::string name = signal_name(n);
    const bool requested = n == SIGINT || n == SIGTERM || n == SIGHUP || n == SIGUSR1;
    if (!requested) report_end(rank, pid, cat("died of ", name.starts_with("SIG") ? name : cat("signal ", n)));
    if (code_ == static_cast<int>(Exit::kInternal) && !died_) code_ = 0;
    died_ = true;
    take_failure(128 + n, kAfterDeath);
  }

  void take_failure(int code, std::chrono::seconds grace) {
    if (code_ != 0) return;  // a consequence of the first one
    code_ = code;
    deadline_ = std::min(deadline_, Clock::now() + grace);
  }

  void take_signal(int n) {
    if (n == SIGHUP) drop_dead_console();
    if (n > 0 && n != SIGCHLD) send(n == SIGUSR2 ? SIGUSR2 : SIGUSR1);
  }

  void take_requests() {
    char bytes[64];
    ssize_t n = job_.requests < 0 ? -1 : read(job_.requests, bytes, sizeof bytes);
    if (n == 0 && !killed_) {
      if (code_ == 0) code_ = 128 + SIGKILL;
      kill_all();
    }
    for (ssize_t i = 0; i < n; ++i) send(bytes[i] == kDumpRequest ? SIGUSR2 : SIGUSR1);
  }

  void kill_all() {
    killed_ = true;
    deadline_ = Clock::time_point::max();
    send(SIGKILL);
  }

  void send(int n) const {
    for (const pid_t p : pids_)
      if (p > 0) kill(p, n);
  }

  const LocalJob job_;
  const std::vector<std::string>& words_;
  const sigset_t& mask_;
  sigset_t signals_;
  std::vector<pid_t> pids_;  // by rank; 0: not started, or ended
  int code_ = 0;
  bool died_ = false, killed_ = false;  // a rank died of a signal; all are killed
  Clock::time_point deadline_ = Clock::time_point::max();
};

}  // namespace

int run_local_ranks(const LocalJob& job, const std::vector<std::string>& words, const sigset_t& mask) {
  return LocalRanks(job, words, mask).run();
}

}  // namespace gt
