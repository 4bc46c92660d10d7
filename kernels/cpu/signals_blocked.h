// Keeps signal handlers off a thread that runs oneDNN. Its generated SGEMM code (2.6: jit_avx_gemm_f32,
// jit_avx512_common_gemm_f32) points the stack pointer into a heap buffer of its own when k is long; the kernel would
// push the signal's frame there, over whatever lies below that buffer.
#pragma once
#include <signal.h>

#include <initializer_list>

namespace gt::cpu {

// While it lives, the calling thread, and every thread that it starts, takes no asynchronous signal: one that comes is
// delivered to another thread, or to this one afterwards. Faults still come through.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&all, fault);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace gt::cpu
