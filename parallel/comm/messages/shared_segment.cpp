#include "parallel/comm/messages/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "kernels/core/owned_file.h"

namespace gt {

SharedSegment SharedSegment::open(const SetupExchange& ranks, int64_t bytes,
                                  const std::function<void(std::byte*)>& construct) {
  constexpr const char* kFolder = "/dev/shm";
  constexpr size_t kMostBytes = 64;
  char path[kMostBytes] = "";
  const bool first = ranks.rank() == 0;
  OwnedFile file;
  if (first) {
    file = create_owned_file(kFolder);
    // Allocates the memory now: a full /dev/shm is an error here and a SIGBUS later.
    if (file.fd && posix_fallocate(file.fd.get(), 0, bytes) != 0) {
      ::unlink(file.path.c_str());
      file = {};
    }
    if (file.fd) std::snprintf(path, sizeof path, "%s", file.path.c_str());
  }
  ranks.broadcast(path, sizeof path);
  Fd fd;
  if (!first && path[0] != 0) fd = Fd(::open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  const int mapped = first ? file.fd.get() : fd.get();
  void* base = mapped < 0 ? MAP_FAILED
                          : mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, mapped, 0);
  SharedSegment s;
  if (base != MAP_FAILED) {
    s.base_ = static_cast<std::byte*>(base);
    s.bytes_ = bytes;
    construct(s.base_);
  }
  const bool everybody = ranks.everybody(base != MAP_FAILED);
  if (first && path[0] != 0) ::unlink(path);
  return everybody ? std::move(s) : SharedSegment();
}

SharedSegment::~SharedSegment() {
  if (base_ != nullptr) munmap(base_, static_cast<size_t>(bytes_));
}

SharedSegment::SharedSegment(SharedSegment&& o) noexcept : base_(std::exchange(o.base_, nullptr)), bytes_(o.bytes_) {}

SharedSegment& SharedSegment::operator=(SharedSegment&& o) noexcept {
  std::swap(base_, o.base_);
  std::swap(bytes_, o.bytes_);
  return *this;
}

}  // namespace gt
