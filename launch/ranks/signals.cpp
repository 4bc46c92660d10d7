#include "launch/ranks/signals.h"

#include <fcntl.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <ctime>
#include <initializer_list>

namespace gt {
namespace {

// Global, because a signal handler has no other state; atomic, because ranks may be threads.
std::atomic<int> first_signal{0};
std::atomic<double> first_time{0};  // seconds; 0: not known yet
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<double>::is_always_lock_free);

double seconds_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

extern "C" void on_stop_signal(int n) {
  // Ctrl-C also ends a `tee` reading the output, but the stop still has to save a checkpoint.
  signal(SIGPIPE, SIG_IGN);
  if (n == SIGHUP) drop_dead_terminal();
  int none = 0;
  if (first_signal.compare_exchange_strong(none, n)) {
    first_time = seconds_now();
  } else if (const double first = first_time; first > 0 && is_second_request(n, seconds_now() - first)) {
    _exit(128 + n);
  }
}

}  // namespace

void drop_dead_terminal() {
  const int error = errno;
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    termios unused;
    if (tcgetattr(fd, &unused) == 0 || errno != EIO) continue;
    if (const int null = open("/dev/null", O_WRONLY | O_CLOEXEC); null >= 0) {
      dup2(null, fd);
      close(null);
    }
  }
  errno = error;
}

void install_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART;  // writes to logs must not fail with EINTR
  sigemptyset(&action.sa_mask);
  sigset_t ours;
  sigemptyset(&ours);
  for (const int n : {SIGINT, SIGTERM, SIGUSR1, SIGHUP}) {
    struct sigaction now {};
    sigaction(n, nullptr, &now);
    if (n == SIGHUP && now.sa_handler == SIG_IGN) continue;  // nohup
    sigaction(n, &action, nullptr);
    sigaddset(&ours, n);
  }
  // delivers signals that arrived while a parent process had them blocked
  pthread_sigmask(SIG_UNBLOCK, &ours, nullptr);
}

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
