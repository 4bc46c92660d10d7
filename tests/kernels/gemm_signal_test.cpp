// Signal handlers during GEMM: oneDNN's generated code points the stack pointer into its heap buffer, where a handler's
// frame would overwrite what lies below (kernels/cpu/signals_blocked.h).
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "kernels/cpu/context.h"
#include "kernels/cpu/kernels.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

volatile sig_atomic_t handled = 0, off_the_stack = 0;

// Stack of the calling thread as [begin, end).
struct Stack {
  uintptr_t begin = 0, end = 0;
  Stack() {
    pthread_attr_t attributes;
    void* low = nullptr;
    size_t bytes = 0;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &low, &bytes);
    pthread_attr_destroy(&attributes);
    begin = reinterpret_cast<uintptr_t>(low), end = begin + bytes;
  }
};
Stack caller_stack;
pthread_t caller;

void on_alarm(int, siginfo_t*, void*) {
  const auto frame = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  handled = handled + 1;
  if (pthread_equal(pthread_self(), caller) == 0 || frame < caller_stack.begin || frame >= caller_stack.end)
    off_the_stack = off_the_stack + 1;
}

// Computes weight gradients of a long inner dimension under an alarm every 200 us. 0: all handlers ran on the stack.
int multiply_under_alarms(int threads) {
  caller_stack = Stack();
  caller = pthread_self();
  for (const int n : {SIGABRT, SIGSEGV}) signal(n, SIG_DFL);  // a corrupted heap ends the child at once
  struct sigaction action {};
  action.sa_sigaction = on_alarm;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  sigaction(SIGALRM, &action, nullptr);
  cpu::CpuContext context(threads);
  constexpr int64_t kM = 192, kN = 768, kK = 768;
  std::vector<float> a(kK * kM, 0.5f), b(kK * kN, 0.25f), out(kM * kN);
  const auto matrix = [](std::vector<float>& v, int64_t rows, int64_t cols) {
    return Tensor{reinterpret_cast<std::byte*>(v.data()), {rows, cols}, DType::kF32, {}};
  };
  const itimerval every{{0, 200}, {0, 200}};
  setitimer(ITIMER_REAL, &every, nullptr);
  const auto begin = std::chrono::steady_clock::now();
  int64_t calls = 0;
  while (calls < 20 || std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(200)) {
    Gemm g{.a = matrix(a, kK, kM), .b = matrix(b, kK, kN), .out = matrix(out, kM, kN), .trans_a = true};
    g.accumulate = calls++ % 2 == 1;
    cpu::gemm(g, Stream{{}, &context});
    const float expected = static_cast<float>(kK) * 0.125f * (g.accumulate ? 2 : 1);
    for (const float x : out)
      if (x != expected) return 3;
  }
  const itimerval never{};
  setitimer(ITIMER_REAL, &never, nullptr);
  if (handled < 10) return 2;
  return off_the_stack == 0 ? 0 : 1;
}

}  // namespace

TEST_CASE("signals during a GEMM are handled on the caller's own stack") {
  for (const int threads : {1, 2}) {
    const pid_t child = fork();
    if (child == 0) _exit(multiply_under_alarms(threads));
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CAPTURE(threads);
    CHECK(status == 0);
  }
}
