#include "launch/ranks/run_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/files.h"
#include "kernels/core/host.h"

namespace gt {

int open_run_file(const std::string& path, int flags) {
  int fd = -1;
  do { fd = ::open(path.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666); } while (fd < 0 && errno == EINTR);
  struct stat s {};
  if (fd < 0 || (::fstat(fd, &s) == 0 && S_ISREG(s.st_mode))) return fd;
  ::close(fd);
  errno = ENODEV;
  return -1;
}

std::string open_error(int error) {
  if (error == ELOOP) return "is a symbolic link, and nothing is written through one; remove it";
  return error == ENODEV || error == ENXIO ? "is not a regular file; remove it" : std::strerror(error);
}

namespace {

// Takes ownership of the descriptor.
void write_and_close(int fd, const std::string& path, std::string_view content) {
  int error = fd < 0 ? errno : 0;
  while (error == 0 && !content.empty()) {
    const ssize_t n = ::write(fd, content.data(), content.size());
    if (n < 0 && errno != EINTR) error = errno;
    if (n > 0) content.remove_prefix(static_cast<size_t>(n));
  }
  if (fd >= 0 && ::close(fd) != 0 && error == 0) error = errno;
  GT_REQUIRE(error == 0, Exit::kIo, path, ": cannot be written: ", open_error(error));
}

}  // namespace

void write_run_file(const std::string& path, std::string_view content) {
  write_and_close(open_run_file(path, O_WRONLY | O_CREAT | O_TRUNC), path, content);
}

void append_run_file(const std::string& path, std::string_view content) {
  write_and_close(open_run_file(path, O_WRONLY | O_CREAT | O_APPEND), path, content);
}

RunLock::State RunLock::state_of(const std::string& run_dir) {
  const Fd lock(open_run_file(run_dir + "/.run.lock", O_RDONLY));
  if (!lock) return State::kNone;
  if (::flock(lock.get(), LOCK_SH | LOCK_NB) == 0) return State::kFree;
  return errno == EWOULDBLOCK ? State::kHeld : State::kNone;
}

// The ranks of an attempt that was just ended may hold it for another moment.
RunLock::RunLock(const std::string& run_dir) : path_(run_dir + "/.run.lock") {
  constexpr double kPatienceSeconds = 2;
  for (const double end = now() + kPatienceSeconds; !take(now() >= end);)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

// Returns false if another process holds the lock and this is not the last try, or the locked file no longer has this
// name, because its owner removed it in between.
bool RunLock::take(bool last) {
  fd_ = open_run_file(path_, O_RDWR | O_CREAT);
  GT_REQUIRE(fd_ >= 0 || (errno != ELOOP && errno != ENODEV), Exit::kIo, path_, ": ", open_error(errno));
  if (fd_ < 0) return true;  // no space or permission: the run's own writes will report it
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    const bool taken = errno == EWOULDBLOCK;
    char owner[300] = "";
    if (::pread(fd_, owner, sizeof owner - 1, 0) <= 0) std::strcpy(owner, "one that has just begun");
    ::close(std::exchange(fd_, -1));
    if (taken && !last) return false;
    GT_REQUIRE(!taken, Exit::kUsage, path_, ": another job uses this folder: ", owner,
               ". Two runs would interleave their logs: wait for it, end it, or give another --log.name");
    return true;
  }
  struct stat mine {
  }, there{};
  if (::fstat(fd_, &mine) != 0 || ::stat(path_.c_str(), &there) != 0 || mine.st_ino != there.st_ino) {
    ::close(std::exchange(fd_, -1));
    return false;
  }
  const std::string owner = cat("host ", host_name(), ", pid ", ::getpid());
  if (::ftruncate(fd_, 0) == 0) (void)!::pwrite(fd_, owner.data(), owner.size(), 0);
  return true;
}

RunLock::~RunLock() {
  if (fd_ < 0) return;
  ::unlink(path_.c_str());
  ::close(fd_);
}

}  // namespace gt
