#include "parallel/comm/messages/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

namespace gt {

SharedSegment SharedSegment::open(const SetupExchange& ranks, int64_t bytes,
                                  const std::function<void(std::byte*)>& construct) {
  char name[64] = "";
  int fd = -1;
  const bool first = ranks.rank() == 0;
  if (first) {
    for (int i = 0; i < 1000 && fd < 0; ++i) {
      std::snprintf(name, sizeof name, "/gpttrain-%ld-%d", static_cast<long>(getpid()), i);
      fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    }
    // Allocates the memory now: a full /dev/shm is an error here and a SIGBUS later.
    if (fd >= 0 && posix_fallocate(fd, 0, bytes) != 0) close(fd), shm_unlink(name), fd = -1;
    if (fd < 0) name[0] = 0;
  }
  ranks.broadcast(name, sizeof name);
  if (!first && name[0] != 0) fd = shm_open(name, O_RDWR, 0600);
  void* base =
      fd < 0 ? MAP_FAILED : mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (fd >= 0) close(fd);
  SharedSegment s;
  if (base != MAP_FAILED) {
    s.base_ = static_cast<std::byte*>(base);
    s.bytes_ = bytes;
    construct(s.base_);
  }
  const bool everybody = ranks.everybody(base != MAP_FAILED);
  if (first && name[0] != 0) shm_unlink(name);
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
