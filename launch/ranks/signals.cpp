#include "launch/ranks/signals.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <initializer_list>

namespace gt {
namespace {

// Global, because a signal handler has no other state; atomic, because ranks may be threads.
std::atomic<int> first_signal{0};
std::atomic<double> first_time{0};         // of the first one that a second request follows; seconds, 0: none yet
std::atomic<bool> parent_forwards{false};  // the parent process forwards its stop signals as SIGUSR1
std::atomic<bool> survives_console{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<double>::is_always_lock_free);

double seconds_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

extern "C" void on_stop_signal(int n, siginfo_t* info, void*) {
  // Ctrl-C also ends a `tee` reading the output, but the stop still has to save a checkpoint.
  if (!survives_console) signal(SIGPIPE, SIG_IGN);
  if (n == SIGHUP) drop_dead_console();
  int none = 0;
  first_signal.compare_exchange_strong(none, n);
  const bool forwarded = n == SIGUSR1 && parent_forwards && info != nullptr && info->si_pid == getppid();
  if (!precedes_second_request(n) || forwarded) return;
  double never = 0;
  const double now = seconds_now();
  if (!first_time.compare_exchange_strong(never, now) && is_second_request(n, now - never)) _exit(128 + n);
}

extern "C" void on_broken_pipe(int) { drop_dead_console(); }

// A terminal that is gone fails with EIO, a pipe without a reader is in an error state.
bool is_dead(int fd) {
  termios unused;
  if (tcgetattr(fd, &unused) == 0) return false;
  if (errno == EIO) return true;
  pollfd p{fd, 0, 0};
  return poll(&p, 1, 0) > 0 && (p.revents & (POLLERR | POLLHUP)) != 0;
}

}  // namespace

void drop_dead_console() {
  const int error = errno;
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    if (!is_dead(fd)) continue;
    if (const int null = open("/dev/null", O_WRONLY | O_CLOEXEC); null >= 0) {
      dup2(null, fd);
      close(null);
    }
  }
  errno = error;
}

void install_stop_signals() {
  parent_forwards = std::getenv("GPTTRAIN_LAUNCHED") != nullptr;
  if (std::getenv(kNoHangupVariable) != nullptr) signal(SIGHUP, SIG_IGN);
  struct sigaction action {};
  action.sa_sigaction = on_stop_signal;
  action.sa_flags = SA_RESTART | SA_SIGINFO;  // writes to logs must not fail with EINTR
  sigemptyset(&action.sa_mask);
  sigset_t ours;
  sigemptyset(&ours);
  for (const int n : {SIGINT, SIGTERM, SIGUSR1, SIGHUP}) {
    if (n == SIGHUP && ignores_hangup()) continue;  // nohup
    sigaction(n, &action, nullptr);
    sigaddset(&ours, n);
  }
  // delivers signals that arrived while a parent process had them blocked
  pthread_sigmask(SIG_UNBLOCK, &ours, nullptr);
}

void survive_console() {
  // The line that meets the broken pipe stays in the buffer instead of failing, and goes where the handler leads it.
  static char errors[16 << 10];
  std::setvbuf(stderr, errors, _IOLBF, sizeof errors);
  struct sigaction action {};
  action.sa_handler = on_broken_pipe;
  action.sa_flags = SA_RESTART;
  sigaction(SIGPIPE, &action, nullptr);
  survives_console = true;
}

bool ignores_hangup() {
  struct sigaction now {};
  return sigaction(SIGHUP, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

bool precedes_second_request(int signal) { return signal != SIGHUP; }

bool is_second_request(int signal, double seconds) {
  return (signal == SIGINT && seconds > 0.2) || (signal == SIGTERM && seconds > 1);
}

bool stop_requested() { return first_signal != 0; }
int stop_signal() { return first_signal; }

const char* signal_name(int n) {
  switch (n) {
    case SIGINT: return "SIGINT";
    case SIGTERM: return "SIGTERM";
    case SIGUSR1: return "SIGUSR1";
    case SIGUSR2: return "SIGUSR2";
    case SIGHUP: return "SIGHUP";
    case SIGKILL: return "SIGKILL";
    case SIGSEGV: return "SIGSEGV";
    case SIGBUS: return "SIGBUS";
    case SIGABRT: return "SIGABRT";
    case SIGFPE: return "SIGFPE";
    case SIGILL: return "SIGILL";
    default: return "another signal";
  }
}

}  // namespace gt
