#include "launch/ranks/stack_watch.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "kernels/core/check.h"
#include "launch/ranks/program_symbols.h"

namespace gt {
namespace {

constexpr int kThreads = 64, kFrames = 64;
constexpr size_t kStackBytes = 64 << 10;

// Globals, because a signal handler has no other state.
std::atomic<int> requests{0};
struct Watched {
  std::atomic<int> tid{0}, rank{-1};
};
std::array<Watched, kThreads> threads;
std::atomic<int> target{0};    // thread whose stack is requested; 0: none
std::atomic<int> captured{0};  // number of captured frames; 0: pending
void* frames[kFrames];

int thread_id() { return static_cast<int>(syscall(SYS_gettid)); }

extern "C" void on_dump_signal(int, siginfo_t* info, void*) {
  const int error = errno;
  if (info->si_code == SI_TKILL && info->si_pid == getpid()) {
    int mine = thread_id();
    if (target.compare_exchange_strong(mine, 0)) captured.store(backtrace(frames, kFrames), std::memory_order_release);
  } else {
    requests.fetch_add(1, std::memory_order_relaxed);
  }
  errno = error;
}

std::string readable(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                                         std::free);
  return status == 0 ? text.get() : name;
}

std::string stack_of(int tid) {
  captured.store(0);
  target.store(tid);
  syscall(SYS_tgkill, getpid(), tid, SIGUSR2);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (captured.load(std::memory_order_acquire) == 0 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  int pending = tid;
  if (target.compare_exchange_strong(pending, 0))
    return "  no response to the signal: inside a long GEMM, or stopped\n";
  int n;  // the handler is already running: wait for it
  while ((n = captured.load(std::memory_order_acquire)) == 0) std::this_thread::yield();
  std::string out;
  for (int k = 2; k < n; ++k) out += "  " + symbol_at(frames[k]) + "\n";  // skips the handler and its signal frame
  return out;
}

}  // namespace

void install_dump_signal() {
  void* warm[1];
  backtrace(warm, 1);  // initializes backtrace outside the handler
  struct sigaction action {};
  action.sa_sigaction = on_dump_signal;
  action.sa_flags = SA_RESTART | SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGUSR2, &action, nullptr);
}

int dump_requests() { return requests.load(std::memory_order_relaxed); }

StackWatch::StackWatch(int rank) : slot_(-1) {
  for (int k = 0; k < kThreads && slot_ < 0; ++k) {
    int free = 0;
    if (threads[static_cast<size_t>(k)].tid.compare_exchange_strong(free, thread_id())) slot_ = k;
  }
  if (slot_ < 0) return;
  threads[static_cast<size_t>(slot_)].rank.store(rank);
  memory_ = new char[kStackBytes];
  const stack_t own{memory_, 0, kStackBytes};
  sigaltstack(&own, nullptr);
}

StackWatch::~StackWatch() {
  if (slot_ < 0) return;
  threads[static_cast<size_t>(slot_)].tid.store(0);
  const stack_t none{nullptr, SS_DISABLE, 0};
  sigaltstack(&none, nullptr);
  delete[] memory_;
}

int watched_rank() {
  const int me = thread_id();
  for (const Watched& w : threads)
    if (w.tid.load(std::memory_order_relaxed) == me) return w.rank.load(std::memory_order_relaxed);
  return -1;
}

std::string watched_stacks() {
  std::string out;
  for (Watched& w : threads)
    if (const int tid = w.tid.load(); tid != 0) out += cat("rank ", w.rank.load(), "\n", stack_of(tid));
  return out;
}

std::string symbol_at(const void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0) return "generated code";
  const auto offset = reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(info.dli_fbase);
  if (info.dli_sname != nullptr)
    return cat(readable(info.dli_sname), "+0x", std::hex,
               reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(info.dli_saddr));
  const ProgramSymbols symbols;
  if (const char* name = symbols.name_of(address)) return readable(name);
  return cat(info.dli_fname, "(+0x", std::hex, offset, ")");
}

}  // namespace gt
