#include "launch/ranks/crash.h"

#include <execinfo.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>

#include "kernels/core/check.h"
#include "kernels/core/host.h"
#include "launch/ranks/program_symbols.h"
#include "launch/ranks/signals.h"
#include "launch/ranks/stack_watch.h"
#include "parallel/comm/call.h"

namespace gt {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr int kFrames = 48;
constexpr unsigned kGiveUpSeconds = 10;  // a report that hangs must not keep a crashed process alive

// Globals, because a signal handler has no other state.
std::atomic<const RankPages*> pages{nullptr};
std::atomic<int> local{-1};
char host[64] = "?";
std::atomic<int> reporter{0};  // reporting thread: the first one that crashes

// Fixed-size text buffer; excess text is dropped.
class Line {
 public:
  Line& operator<<(const char* s) {
    if (s != nullptr) append(s, std::strlen(s));
    return *this;
  }
  Line& operator<<(int64_t n) {
    if (n < 0) *this << "-";
    return digits(n < 0 ? 0 - static_cast<uint64_t>(n) : static_cast<uint64_t>(n), 10);
  }
  Line& hex(uint64_t n) { return (*this << "0x").digits(n, 16); }
  template <size_t kBytes>
  Line& operator<<(const AtomicText<kBytes>& text) {
    char padded[kBytes + 1] = {};
    for (size_t i = 0; i < kBytes / 8; ++i) {
      const uint64_t w = text.word[i].load(kRelaxed);
      std::memcpy(padded + 8 * i, &w, 8);
    }
    return *this << padded;
  }
  void append(const char* s, size_t n) {
    for (size_t i = 0; i < n && size_ < sizeof text_; ++i) text_[size_++] = s[i];
  }
  void write_out() {
    for (size_t done = 0; done < size_;) {
      const ssize_t n = ::write(STDERR_FILENO, text_ + done, size_ - done);
      if (n <= 0) break;
      done += static_cast<size_t>(n);
    }
    size_ = 0;
  }

 private:
  Line& digits(uint64_t n, uint64_t base) {
    char d[20];
    size_t at = sizeof d;
    do d[--at] = "0123456789abcdef"[n % base];
    while ((n /= base) != 0);
    append(d + at, sizeof d - at);
    return *this;
  }
  char text_[12 << 10];
  size_t size_ = 0;
};
Line line;  // used by the reporting thread only

// Writes "_ZN2gt7Trainer3runEv" as "gt::Trainer::run" and a lambda as its enclosing function; other names unchanged.
void put_name(const char* mangled) {
  const char* at = mangled;
  if (std::strncmp(at, "_ZN", 3) != 0 && std::strncmp(at, "_ZZN", 4) != 0) return static_cast<void>(line << mangled);
  at += at[2] == 'Z' ? 4 : 3;
  while (*at == 'K' || *at == 'V') ++at;
  const char* begin = at;
  for (bool first = true; *at >= '1' && *at <= '9'; first = false) {
    size_t n = 0;
    while (*at >= '0' && *at <= '9') n = 10 * n + static_cast<size_t>(*at++ - '0');
    n = strnlen(at, n);
    if (!first) line << "::";
    if (std::strncmp(at, "_GLOBAL__N_1", n) == 0)
      line << "(anonymous)";
    else
      line.append(at, n);
    at += n;
  }
  if (at == begin) line << mangled;
}

void put_call(const AtomicCall& words) {
  const CommCall c = words.load();
  line << name_of(c.op) << "(" << name_of(c.dtype) << " x " << c.count << ")";
}

void put_where(int64_t step, uint64_t where) {
  line << "step " << step;
  if (where != kNoPosition)
    line << ", stage " << static_cast<int32_t>(where >> 32) << ", microbatch " << static_cast<int32_t>(where);
}

void put_call_in_progress(const RankPages& p) {
  const RankSlot& s = p.rank;
  const GroupSlot* last = nullptr;
  const bool waits = s.wait_start.load(kRelaxed) != 0;
  for (const GroupSlot& g : p.group) {
    if (g.key.load(kRelaxed) == 0) continue;
    if (waits ? g.key.load(kRelaxed) == s.wait_key.load(kRelaxed)
              : g.posted.load(kRelaxed) + g.messages.load(kRelaxed) > 0 &&
                    (last == nullptr || g.last_start.load(kRelaxed) > last->last_start.load(kRelaxed)))
      last = &g;
  }
  if (last == nullptr) return;
  line << (waits ? "; waiting in " : "; last call: ") << last->label << " ";
  put_call(waits ? s.wait_call : last->last);
  if (waits) line << " #" << static_cast<int64_t>(s.wait_seq.load(kRelaxed));
}

// Writes "gpttrain: rank 3 (node07 pid 4711, pp1 dp0 tp1): SIGSEGV at address 0x10; step, step 120, stage 1, microbatch
// 3; …".
void put_location(const char* what, const void* address) {
  const RankPages* board = pages.load();
  const int mine = local.load(), rank = mine >= 0 ? mine : watched_rank();
  line << "gpttrain: ";
  if (board != nullptr && rank >= 0) {
    const RankSlot& s = board[rank].rank;
    line << "rank " << s.world_rank.load(kRelaxed) << " (" << host << " pid " << getpid();
    line << ", " << s.coordinates << "): " << what;
    if (address != nullptr) (line << " at address ").hex(reinterpret_cast<uintptr_t>(address));
    line << (watched_rank() < 0 ? ", in a non-training thread; " : "; ") << to_string(s.phase.load(kRelaxed)) << ", ";
    put_where(s.step.load(kRelaxed), s.where.load(kRelaxed));
    put_call_in_progress(board[rank]);
  } else {
    line << host << " pid " << getpid() << ": " << what;
    if (address != nullptr) (line << " at address ").hex(reinterpret_cast<uintptr_t>(address));
  }
  line << "\n";
}

// Writes the frames from `skip` on, innermost first.
void put_stack(int skip) {
  void* frames[kFrames];
  const int n = backtrace(frames, kFrames);
  const ProgramSymbols symbols;
  for (int k = skip; k < n; ++k) {
    line << "  ";
    if (const char* name = symbols.name_of(frames[k])) {
      put_name(name);
      (line << " [").hex(reinterpret_cast<uintptr_t>(frames[k])) << "]\n";
    } else {
      line.write_out();
      backtrace_symbols_fd(frames + k, 1, STDERR_FILENO);  // library frame, with its offset
    }
  }
}

// Returns true in the first thread that crashes. Other threads wait for the process to end. Returns false for a crash
// inside the report.
bool begin_report() {
  const int me = static_cast<int>(syscall(SYS_gettid));
  int nobody = 0;
  if (reporter.compare_exchange_strong(nobody, me)) return alarm(kGiveUpSeconds), true;
  while (nobody != me) pause();
  return false;
}

extern "C" void on_crash_signal(int n, siginfo_t* info, void*) {
  if (begin_report()) {
    const bool faulted = info->si_code > 0 && n != SIGABRT;
    put_location(signal_name(n), faulted ? info->si_addr : nullptr);
    line.write_out();  // flush before steps that may fail
    put_stack(2);
    line.write_out();
  }
  signal(n, SIG_DFL);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, n);
  pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  raise(n);
}

[[noreturn]] void on_terminate() {
  if (begin_report()) {
    char what[256] = "uncaught exception";  // allocates nothing: memory may be what is missing
    try {
      if (const auto e = std::current_exception()) std::rethrow_exception(e);
      std::strcpy(what, "terminate was called");
    } catch (const std::bad_alloc& e) {
      std::snprintf(what, sizeof what, "%s", e.what());
    } catch (const std::exception& e) {
      std::snprintf(what, sizeof what, "uncaught exception: %s", e.what());
    } catch (...) {}
    put_location(what, nullptr);
    put_stack(2);
    line.write_out();
  }
  _exit(static_cast<int>(Exit::kInternal));
}

}  // namespace

void install_crash_handlers() {
  void* warm[1];
  backtrace(warm, 1);  // initializes backtrace outside the handler
  std::strncpy(host, host_name().c_str(), sizeof host - 1);
  std::set_terminate(on_terminate);
#ifndef GPT_SANITIZED
  struct sigaction action {};
  action.sa_sigaction = on_crash_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (const int n : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigaction(n, &action, nullptr);
#endif
}

CrashNotes::CrashNotes(const CommBoard& board, int local_rank) {
  local.store(local_rank);
  pages.store(board.pages);
}

CrashNotes::~CrashNotes() { pages.store(nullptr); }

}  // namespace gt
