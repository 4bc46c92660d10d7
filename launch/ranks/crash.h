// Crash report of a process: rank, host, rank coordinates, step, current operation per process group, and stack, in one
// write to standard error. Async-signal-safe: no allocation, locks or formatting by libraries.
#pragma once
#include "parallel/comm/watch/comm_board.h"

namespace gt {

// Reports SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT, then lets the signal end the process (128 + n, core dump).
// Uncaught exceptions are reported with their text and exit with code 70.
// Requires: called after initialization of libraries that install handlers (MPI). Signals are not handled under
// sanitizers, whose own reports are more detailed.
void install_crash_handlers();

// While alive, crash reports include the state of local rank `local_rank` of the board. -1: ranks are threads, and the
// crashing thread identifies its rank (stack_watch.h). At most one instance per process.
class CrashNotes {
 public:
  CrashNotes(const CommBoard&, int local_rank);
  ~CrashNotes();
  CrashNotes(const CrashNotes&) = delete;
  CrashNotes& operator=(const CrashNotes&) = delete;
};

}  // namespace gt
