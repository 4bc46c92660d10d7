#include "tests/reliability/call_trace.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <set>

namespace gt {
namespace {

std::string text_at(pid_t pid, uint64_t address) {
  std::string out(4096, '\0');
  const iovec local{out.data(), out.size()}, remote{reinterpret_cast<void*>(address), out.size()};
  ssize_t n = process_vm_readv(pid, &local, 1, &remote, 1, 0);
  if (n <= 0) {  // the string ends at an unmapped page, or reading is forbidden: read word by word
    n = 0;
    for (; n + 8 <= 4096; n += 8) {
      errno = 0;
      const long word = ptrace(PTRACE_PEEKDATA, pid, address + static_cast<uint64_t>(n), nullptr);
      if (errno != 0) break;
      __builtin_memcpy(out.data() + n, &word, 8);
      if (std::string(out.data() + n, 8).find('\0') != std::string::npos) break;
    }
  }
  return out.c_str();
}

void note(CallTrace& t, pid_t pid, const __ptrace_syscall_info& info) {
  const auto& a = info.entry.args;
  const auto opened = [&](uint64_t path, uint64_t flags) {
    (flags & (O_WRONLY | O_RDWR | O_CREAT) ? t.written : t.read).push_back(text_at(pid, path));
  };
  switch (info.entry.nr) {
    case SYS_execve:
    case SYS_execveat: ++t.programs; break;
    case SYS_connect: ++t.connections; break;
    case SYS_socket: t.connections += a[0] != AF_UNIX; break;
    case SYS_open: opened(a[0], a[1]); break;
    case SYS_openat: opened(a[1], a[2]); break;
    case SYS_creat: opened(a[0], O_CREAT); break;
    case SYS_openat2: opened(a[1], O_RDWR); break;
    default: break;
  }
}

[[noreturn]] void run_traced(const std::vector<std::string>& words, const std::string& cwd) {
  const int null = open("/dev/null", O_RDWR);
  for (const int fd : {0, 1, 2}) dup2(null, fd);
  if (chdir(cwd.c_str()) != 0 || ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(126);
  std::vector<char*> argv;
  for (const std::string& w : words) argv.push_back(const_cast<char*>(w.c_str()));
  argv.push_back(nullptr);
  raise(SIGSTOP);
  setenv("XDG_CACHE_HOME", cwd.c_str(), 1);
  execv(argv[0], argv.data());
  _exit(127);
}

}  // namespace

CallTrace trace_calls(const std::vector<std::string>& words, const std::string& cwd) {
  CallTrace t;
  const pid_t child = fork();
  if (child == 0) run_traced(words, cwd);
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) {
    t.possible = false;
    return t;
  }
  ptrace(PTRACE_SETOPTIONS, child, nullptr,
         PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL);
  ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
  for (;;) {
    const pid_t pid = waitpid(-1, &status, __WALL);
    if (pid < 0) break;
    if (WIFEXITED(status) || WIFSIGNALED(status)) {
      if (pid != child) continue;
      t.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      break;
    }
    int deliver = 0;
    const int n = WSTOPSIG(status);
    if (n == (SIGTRAP | 0x80)) {
      __ptrace_syscall_info info{};
      if (ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info) > 0 && info.op == PTRACE_SYSCALL_INFO_ENTRY)
        note(t, pid, info);
    } else if (n != SIGTRAP && n != SIGSTOP) {
      deliver = n;
    }
    ptrace(PTRACE_SYSCALL, pid, nullptr, deliver);
  }
  return t;
}

}  // namespace gt
