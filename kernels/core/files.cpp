#include "kernels/core/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kernels/core/check.h"

namespace gt {
namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return S_ISREG(mode) ? "" : "a device";
}

void require_regular(const std::string& path, int result, const struct stat& s) {
  GT_REQUIRE(result == 0, Exit::kUsage, path, ": cannot be read: ", std::strerror(errno));
  GT_REQUIRE(S_ISREG(s.st_mode), Exit::kUsage, path, ": is ", kind_of(s.st_mode), ", expected a file");
}

}  // namespace

Fd& Fd::operator=(Fd&& o) noexcept {
  if (this != &o) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = o.release();
  }
  return *this;
}

Fd::~Fd() {
  if (fd_ >= 0) ::close(fd_);
}

// Checked before open, since opening a device may have side effects, and after, since the file may have been replaced.
Fd open_to_read(const std::string& path) {
  struct stat s {};
  require_regular(path, ::stat(path.c_str(), &s), s);
  Fd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  GT_REQUIRE(fd, Exit::kUsage, path, ": cannot be read: ", std::strerror(errno));
  require_regular(path, ::fstat(fd.get(), &s), s);
  return fd;
}

std::string read_whole_file(const std::string& path, int64_t limit) {
  const Fd fd = open_to_read(path);
  std::string out;
  for (size_t size = 0;;) {
    const auto remaining =
        static_cast<size_t>(limit + 1) - size;  // one byte beyond the limit, to detect an oversized file
    out.resize(size + std::min(remaining, size + (size_t{1} << 16)));
    const ssize_t n = ::read(fd.get(), out.data() + size, out.size() - size);
    if (n < 0 && errno == EINTR) continue;
    GT_REQUIRE(n >= 0, Exit::kIo, path, ": read failed: ", std::strerror(errno));
    size += static_cast<size_t>(n);
    GT_REQUIRE(static_cast<int64_t>(size) <= limit, Exit::kUsage, path, ": expected at most ", limit,
               " bytes, found more");
    if (n > 0) continue;
    out.resize(size);
    return out;
  }
}

std::string read_if_there(const std::string& path, int64_t limit) {
  try {
    return read_whole_file(path, limit);
  } catch (const Error&) { return ""; }
}

}  // namespace gt
