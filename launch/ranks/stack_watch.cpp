#include "launch/ranks/stack_watch.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
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

namespace gt {
namespace {

constexpr int kThreads = 64, kFrames = 64;
constexpr size_t kStackBytes = 64 << 10;

// A signal handler can reach nothing but globals.
std::atomic<int> requests{0};
struct Watched {
  std::atomic<int> tid{0}, rank{-1};
};
std::array<Watched, kThreads> threads;
std::atomic<int> wanted{0};    // thread whose stack is asked for; 0: none
std::atomic<int> captured{0};  // frames of it; 0: not yet
void* frames[kFrames];

int thread_id() { return static_cast<int>(syscall(SYS_gettid)); }

extern "C" void on_dump_signal(int, siginfo_t* info, void*) {
  const int error = errno;
  if (info->si_code == SI_TKILL && info->si_pid == getpid()) {
    int mine = thread_id();
    if (wanted.compare_exchange_strong(mine, 0)) captured.store(backtrace(frames, kFrames), std::memory_order_release);
  } else {
    requests.fetch_add(1, std::memory_order_relaxed);
  }
  errno = error;
}

// The symbol table of this program, which the dynamic linker does not load.
std::string own_symbol(uintptr_t offset) {
  const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  struct stat s {};
  if (fd < 0 || fstat(fd, &s) != 0) return "";
  const auto bytes = static_cast<size_t>(s.st_size);
  void* base = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  close(fd);
  if (base == MAP_FAILED) return "";
  const char* file = static_cast<const char*>(base);
  const auto* head = static_cast<const Elf64_Ehdr*>(base);
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(file + head->e_shoff);
  std::string name;
  for (int k = 0; k < head->e_shnum; ++k) {
    if (sections[k].sh_type != SHT_SYMTAB) continue;
    const auto* symbol = reinterpret_cast<const Elf64_Sym*>(file + sections[k].sh_offset);
    const char* names = file + sections[sections[k].sh_link].sh_offset;
    for (size_t i = 0; i < sections[k].sh_size / sizeof(Elf64_Sym); ++i)
      if (ELF64_ST_TYPE(symbol[i].st_info) == STT_FUNC && symbol[i].st_value <= offset &&
          offset < symbol[i].st_value + symbol[i].st_size)
        name = names + symbol[i].st_name;
  }
  munmap(base, bytes);
  return name;
}

std::string readable(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                                         std::free);
  return status == 0 ? text.get() : name;
}

std::string stack_of(int tid) {
  captured.store(0);
  wanted.store(tid);
  syscall(SYS_tgkill, getpid(), tid, SIGUSR2);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (captured.load(std::memory_order_acquire) == 0 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  int asked = tid;
  if (wanted.compare_exchange_strong(asked, 0)) return "  takes no signal: in one long matrix product, or stopped\n";
  int n;  // the handler has begun: it ends
  while ((n = captured.load(std::memory_order_acquire)) == 0) std::this_thread::yield();
  std::string out;
  for (int k = 2; k < n; ++k) out += "  " + symbol_at(frames[k]) + "\n";  // without the handler and what called it
  return out;
}

}  // namespace

void install_dump_signal() {
  void* warm[1];
  backtrace(warm, 1);  // loads what it needs now, not in the handler
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
  Dl_info own{};
  const bool mine = dladdr(reinterpret_cast<void*>(&dump_requests), &own) != 0 && own.dli_fbase == info.dli_fbase;
  const std::string name = mine ? own_symbol(offset) : "";
  return name.empty() ? cat(info.dli_fname, "(+0x", std::hex, offset, ")") : readable(name);
}

}  // namespace gt
