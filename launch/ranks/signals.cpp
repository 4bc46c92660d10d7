#include "launch/ranks/signals.h"

#include <fcntl.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <initializer_list>

namespace gt {
namespace {

// Global, because a signal handler has no other state; atomic, because ranks may be threads.
std::atomic<int> first_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void on_stop_signal(int n) {
  // Ctrl-C also ends a `tee` reading the output, but the stop still has to save a checkpoint.
  signal(SIGPIPE, SIG_IGN);
  if (n == SIGHUP) drop_dead_terminal();
  int none = 0;
  const bool insists = n == SIGINT || n == SIGTERM;  // SIGHUP excluded: closing a terminal may send several
  if (!first_signal.compare_exchange_strong(none, n) && insists) _exit(128 + n);
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
