// Stack dumps on SIGUSR2. The handler counts requests; the stall monitor (parallel/comm/watch/stall_monitor.h) serves
// them by reading the stacks of the training threads here. Signals are blocked inside GEMMs
// (kernels/cpu/signals_blocked.h); such a thread's stack is captured when the GEMM returns.
#pragma once
#include <string>

namespace gt {

// Requires: called once, before threads are created. From then on SIGUSR2 no longer ends the process.
void install_dump_signal();
int dump_requests();  // SIGUSR2 received so far

// Registers the calling thread as a training thread of `rank`. At most 64 per process; later ones have no stack dumps.
class StackWatch {
 public:
  explicit StackWatch(int rank);
  ~StackWatch();
  StackWatch(const StackWatch&) = delete;
  StackWatch& operator=(const StackWatch&) = delete;

 private:
  int slot_;
  char* memory_ = nullptr;  // alternate signal stack
};

// Returns the rank of the calling thread; -1 if it is not registered. Async-signal-safe.
int watched_rank();

// Returns the stacks of all registered threads as text, innermost frame first. Signals them one by one and waits at
// most one second for each. Requires: one caller at a time, not a registered thread.
std::string watched_stacks();

// Returns "gt::Engine::step(…)+0x40", or file and offset for addr2line.
std::string symbol_at(const void* address);

}  // namespace gt
