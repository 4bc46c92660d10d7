// Keeps the current input in a mapped file, so that it survives any death of the process.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

#include "kernels/core/check.h"
#include "tests/support/paths.h"

namespace gt::fuzz {

class CurrentInput {
 public:
  explicit CurrentInput(const std::string& target) : path_(cat(binary_dir(), "/fuzz-", target, ".input")) {
    // A new file with its blocks: another process of the same target keeps its own, and a full disk fails here instead
    // of at a store (SIGBUS).
    ::unlink(path_.c_str());
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL, 0644);
    GT_CHECK(fd_ >= 0 && ::posix_fallocate(fd_, 0, kBytes) == 0, path_);
    void* p = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    GT_CHECK(p != MAP_FAILED, path_);
    memory_ = static_cast<char*>(p);
  }
  ~CurrentInput() {
    ::munmap(memory_, kBytes);
    ::close(fd_);
    if (clean_) ::unlink(path_.c_str());
  }
  CurrentInput(const CurrentInput&) = delete;
  CurrentInput& operator=(const CurrentInput&) = delete;

  // Records the input that is about to run; inputs above 1 MiB are truncated.
  void begin(std::string_view input) {
    size_ = std::min(input.size(), kBytes);
    std::memcpy(memory_, input.data(), size_);
    clean_ = false;
  }
  // The input ran without a finding.
  void end() { clean_ = true; }
  // Truncates the file to the input and returns its path.
  std::string keep() {
    GT_CHECK(::ftruncate(fd_, static_cast<off_t>(size_)) == 0);
    return path_;
  }

 private:
  static constexpr size_t kBytes = 1 << 20;
  std::string path_;
  int fd_ = -1;
  char* memory_ = nullptr;
  size_t size_ = 0;
  bool clean_ = true;
};

}  // namespace gt::fuzz
