// SIGUSR2: what is this process doing? The handler counts requests; whoever watches (parallel/comm/stall_monitor.h)
// answers, and asks here for the stacks of the threads that train. A thread inside a matrix product takes no signal
// (kernels/cpu/signals_blocked.h); its stack is taken when it comes out.
#pragma once
#include <string>

namespace gt {

// Call once, before threads are made. From then on SIGUSR2 ends nothing.
void install_dump_signal();
int dump_requests();  // SIGUSR2 so far

// The calling thread trains as that rank. At most 64 a process; further ones have no stacks.
class StackWatch {
 public:
  explicit StackWatch(int rank);
  ~StackWatch();
  StackWatch(const StackWatch&) = delete;
  StackWatch& operator=(const StackWatch&) = delete;

 private:
  int slot_;
  char* memory_ = nullptr;  // the handler's stack
};

// Of the calling thread; -1: it is not watched. A signal handler may ask.
int watched_rank();

// The stacks of all watched threads, innermost frame first, for people. Signals one after another and waits at most a
// second for each. One caller at a time, not a watched thread.
std::string watched_stacks();

// "gt::Engine::step(…)+0x40", or the file and the offset that addr2line understands.
std::string symbol_at(const void* address);

}  // namespace gt
