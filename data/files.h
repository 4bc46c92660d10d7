// Small file chores of this folder: whole files, atomic replacement, checked writes, the hash of a file.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace gt {

std::string read_whole_file(const std::string& path, int64_t limit = int64_t{1} << 30);  // kUsage: absent, too long
// Writes to a temporary name beside `path`, syncs, renames. Throws Error(kIo).
void write_file_atomically(const std::string& path, std::string_view content);
void write_all(int fd, const void* data, size_t bytes,
               const std::string& path);  // Error(kIo) that says what was written
void rename_file(const std::string& from, const std::string& to);
void sync_and_close(int fd, const std::string& path);
std::string xxh3_128_file(const std::string& path);  // 32 hexadecimal digits

// An open file descriptor that closes itself.
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
// flags as in open(2); Error(kIo) with the reason.
Fd open_file(const std::string& path, int flags);

}  // namespace gt
