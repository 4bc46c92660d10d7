#include "launch/ranks/start/stray_segments.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

namespace gt {

StraySegments::~StraySegments() {
  std::error_code ec;
  for (const auto& e : std::filesystem::directory_iterator("/dev/shm", ec)) {
    long pid = 0;
    struct stat s {};
    if (std::sscanf(e.path().filename().c_str(), "gpttrain-%ld-", &pid) != 1 || lstat(e.path().c_str(), &s) != 0 ||
        s.st_uid != geteuid() || s.st_mtime < begun_)
      continue;
    if (kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH) unlink(e.path().c_str());
  }
}

}  // namespace gt
