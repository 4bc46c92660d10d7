// Blocks signals on threads that run oneDNN. Its generated SGEMM code (2.6: jit_avx_gemm_f32,
// jit_avx512_common_gemm_f32) points the stack pointer into a heap buffer when k is long. The kernel would push a
// signal frame there and overwrite whatever lies below that buffer.
#pragma once
#include <signal.h>

#include <initializer_list>

namespace gt::cpu {

// While alive, the calling thread, and every thread it starts, receives no asynchronous signals: they are delivered to
// another thread, or to this one afterwards. Synchronous faults are not blocked.
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
