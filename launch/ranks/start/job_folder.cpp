#include "launch/ranks/start/job_folder.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <ctime>
#include <filesystem>

namespace gt {
namespace fs = std::filesystem;
namespace {

constexpr const char* kShared = "/dev/shm";
constexpr const char* kPrefix = "gpttrain-job-";
constexpr time_t kUnfinishedSeconds = 3600;  // a folder without a lock: its owner died during creation

bool is_own(const fs::path& p, struct stat& s) { return lstat(p.c_str(), &s) == 0 && s.st_uid == geteuid(); }

// Returns whether the lock's holder is dead. A recent folder without a lock is still being created.
bool is_dead(const fs::path& folder, const struct stat& s) {
  const int fd = open((folder / "lock").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return errno == ENOENT && std::time(nullptr) - s.st_mtime > kUnfinishedSeconds;
  const bool free = flock(fd, LOCK_EX | LOCK_NB) == 0;
  close(fd);
  return free;
}

// Removes segments and shard skeletons whose owner was killed between creating and unlinking them, if created since the
// job began.
void remove_stray_segments(time_t since) {
  std::error_code ec;
  for (const auto& e : fs::directory_iterator(kShared, ec)) {
    long pid = 0;
    struct stat s {};
    if (std::sscanf(e.path().filename().c_str(), "gpttrain-%ld-", &pid) != 1 || !is_own(e.path(), s)) continue;
    if (s.st_mtime < since || kill(static_cast<pid_t>(pid), 0) == 0 || errno != ESRCH) continue;
    unlink(e.path().c_str());
  }
}

}  // namespace

int sweep_job_folders() {
  int removed = 0;
  std::error_code ec;
  for (const auto& e : fs::directory_iterator(kShared, ec)) {
    struct stat s {};
    if (e.path().filename().string().rfind(kPrefix, 0) != 0 || !is_own(e.path(), s) || !S_ISDIR(s.st_mode)) continue;
    if (!is_dead(e.path(), s)) continue;
    fs::remove_all(e.path(), ec);
    ++removed;
  }
  return removed;
}

JobFolder::JobFolder() : begun_(std::time(nullptr)) {
  sweep_job_folders();
  std::string path = std::string(kShared) + "/" + kPrefix + "XXXXXX";
  if (mkdtemp(path.data()) == nullptr) return;
  // Locked before it gets its final name, so that a concurrent sweep never finds it unlocked.
  const std::string unnamed = path + "/lock.new";
  lock_ = open(unnamed.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ >= 0 && flock(lock_, LOCK_EX | LOCK_NB) == 0 && rename(unnamed.c_str(), (path + "/lock").c_str()) == 0)
    path_ = path;
  std::error_code ec;
  if (path_.empty()) fs::remove_all(path, ec);
}

JobFolder::~JobFolder() {
  std::error_code ec;
  if (!path_.empty()) fs::remove_all(path_, ec);
  if (lock_ >= 0) close(lock_);
  remove_stray_segments(begun_);
}

}  // namespace gt
