#include "launch/ranks/signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <initializer_list>

namespace gt {
namespace {

// A signal handler can reach nothing but a global; ranks that are threads read it while any of them handles the signal.
std::atomic<int> first_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void on_stop_signal(int n) {
  // Ctrl-C also ends the `tee` that reads the output; the stop still has a checkpoint to save.
  signal(SIGPIPE, SIG_IGN);
  int none = 0;
  if (!first_signal.compare_exchange_strong(none, n) && n != SIGUSR1) _exit(128 + n);
}

}  // namespace

void install_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART;  // a write to a log must not fail because of it
  sigemptyset(&action.sa_mask);
  for (const int n : {SIGINT, SIGTERM, SIGUSR1}) sigaction(n, &action, nullptr);
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
