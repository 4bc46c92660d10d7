#include "launch/tools/bench/shell_run.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "kernels/core/check.h"
#include "kernels/core/text.h"
#include "launch/ranks/start/own_process.h"

namespace gt {

ShellResult run_shell(const std::string& command) {
  ShellResult r;
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  GT_REQUIRE(pipe != nullptr, Exit::kIo, command, ": cannot be started");
  char piece[4096];
  for (size_t n = 0; (n = std::fread(piece, 1, sizeof piece, pipe)) > 0;) r.out.append(piece, n);
  const int status = ::pclose(pipe);
  r.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return r;
}

MemoryFile::MemoryFile(std::string_view content) : fd_(memfd_create("gpttrain", MFD_CLOEXEC)) {
  GT_REQUIRE(fd_ && ::write(fd_.get(), content.data(), content.size()) == static_cast<ssize_t>(content.size()),
             Exit::kIo, "no file in memory could be made: ", std::strerror(errno));
}

std::string MemoryFile::path() const { return cat("/proc/", ::getpid(), "/fd/", fd_.get()); }

std::string tail(const std::string& text) {
  return text.size() > 2000 ? "..." + text.substr(text.size() - 2000) : text;
}

std::string this_program() { return shell_word(own_program()); }

}  // namespace gt
