// Last words of a process that crashes: rank, host, place, step, what it did in which group, and the stack, in one write
// to standard error. Signal handlers: nothing here allocates, locks or formats with the library.
#pragma once
#include "parallel/comm/comm_board.h"

namespace gt {

// SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT are reported and then end the process as they would have (128 + n, core
// dump); an exception that nobody catches is reported with its text and ends it with 70. Call after libraries that
// bring handlers of their own (MPI). Under a sanitizer, which tells more, signals are left alone.
void install_crash_handlers();

// While it lives, crash reports say what that local rank of the board was doing; -1: the ranks are threads of this
// process, and the crashing thread says which one it is (stack_watch.h). One a process.
class CrashNotes {
 public:
  CrashNotes(const CommBoard&, int local_rank);
  ~CrashNotes();
  CrashNotes(const CrashNotes&) = delete;
  CrashNotes& operator=(const CrashNotes&) = delete;
};

}  // namespace gt
