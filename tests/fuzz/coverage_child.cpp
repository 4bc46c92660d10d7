// Coverage builds only (nightly.sh coverage). The readers' child processes leave by _exit, which writes no counters,
// and may write no files. Here they may, and write their counters first.
#ifdef GPT_COVERAGE
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

extern "C" void __gcov_dump();

extern "C" [[noreturn]] void _exit(int status) {
  __gcov_dump();
  ::syscall(SYS_exit_group, status);
  __builtin_unreachable();
}

extern "C" int setrlimit(__rlimit_resource_t what, const rlimit* limit) noexcept {
  if (what == RLIMIT_FSIZE) return 0;
  return static_cast<int>(::syscall(SYS_prlimit64, 0, what, limit, nullptr));
}
#endif
