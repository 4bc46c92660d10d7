// Reads files named by users and data. A pipe, device, socket or folder in place of a file would block, never end or
// read as empty; it is rejected by name before it is opened.
#pragma once
#include <cstdint>
#include <string>

namespace gt {

// RAII file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& o) noexcept : fd_(o.release()) {}
  Fd& operator=(Fd&& o) noexcept;
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd();
  int get() const { return fd_; }
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Opens a regular file, or a link to one, for reading. Throws kUsage: "PATH: is a pipe, expected a file", "PATH: cannot
// be read: No such file or directory".
Fd open_to_read(const std::string& path);

// Returns the content of such a file. Throws kUsage, also when it exceeds `limit` bytes; kIo when a read fails.
std::string read_whole_file(const std::string& path, int64_t limit = int64_t{1} << 30);
// Returns "" where read_whole_file throws. For optional files of our own.
std::string read_if_there(const std::string& path, int64_t limit = int64_t{1} << 20);

}  // namespace gt
