#include "launch/ranks/start/mpirun_end.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/host.h"
#include "launch/ranks/start/start_watch.h"

namespace gt {
namespace {

namespace fs = std::filesystem;

// Open MPI's name of this machine.
std::string short_name() {
  const std::string name = host_name();
  return name.substr(0, name.find('.'));
}

std::string session_folder(pid_t mpirun) {
  std::string base = "/tmp";
  for (const char* name : {"TMP", "TEMP", "TMPDIR"})  // the last one has precedence
    if (const char* value = std::getenv(name); value != nullptr && *value != 0) base = value;
  return cat(base, "/ompi.", short_name(), ".", geteuid(), "/pid.", mpirun);
}

// Job family in contact.txt, "1266286592.0;tcp://...": the upper half of the number. 0: unknown.
unsigned long family_of(const std::string& session) {
  std::ifstream in(session + "/contact.txt");
  unsigned long job = 0;
  return in >> job ? job >> 16 : 0;
}

// The guard's process: waits for the end of its parent, then for that of mpirun.
[[noreturn]] void guard(int alive, pid_t mpirun) {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  dup2(alive, STDIN_FILENO);
  syscall(SYS_close_range, 1, ~0U, 0);  // whoever reads the output of the job must not wait for this process
  char byte;
  while (read(STDIN_FILENO, &byte, 1) < 0) continue;  // the end of the pipe: its parent is dead
  constexpr int kTicks = 300;                         // of 10 ms
  end_mpirun(mpirun, false);
  for (int i = 0; i < 2 * kTicks && kill(mpirun, 0) == 0; ++i) {
    if (i == kTicks) end_mpirun(mpirun, true);
    usleep(10000);
  }
  remove_mpirun_files(mpirun);
  _exit(0);
}

}  // namespace

void end_mpirun(pid_t mpirun, bool now) {
  std::ifstream in(cat("/proc/", mpirun, "/task/", mpirun, "/children"));
  bool any = false;
  for (pid_t rank; !now && in >> rank;)  // one that has ended already is not noticed while mpirun waits for a machine
    any = (state_of(rank) != 'Z' && kill(rank, SIGKILL) == 0) || any;
  if (!any) kill(mpirun, SIGKILL);
}

void remove_mpirun_files(pid_t mpirun) {
  const std::string session = session_folder(mpirun), prefix = cat("vader_segment.", short_name(), ".", geteuid(), ".");
  std::error_code ec;
  std::vector<fs::path> segments;
  if (const unsigned long family = family_of(session); family != 0)
    for (const auto& e : fs::directory_iterator("/dev/shm", ec)) {
      const std::string name = e.path().filename().string();
      if (name.rfind(prefix, 0) == 0 && std::strtoul(name.c_str() + prefix.size(), nullptr, 16) >> 16 == family)
        segments.push_back(e.path());
    }
  for (const fs::path& path : segments) fs::remove(path, ec);
  fs::remove_all(session, ec);
  fs::remove(fs::path(session).parent_path(), ec);  // if it was the last one
}

MpirunGuard::MpirunGuard(pid_t mpirun) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  guard_ = fork();
  if (guard_ == 0) {
    setpgid(0, 0);
    close(ends[1]);
    guard(ends[0], mpirun);
  }
  close(ends[0]);
  alive_ = ends[1];
}

MpirunGuard::~MpirunGuard() {
  if (guard_ > 0) {
    kill(guard_, SIGKILL);
    waitpid(guard_, nullptr, 0);
  }
  if (alive_ >= 0) close(alive_);
}

}  // namespace gt
