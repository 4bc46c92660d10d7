#include "data/tokens/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kernels/core/check.h"
#include "kernels/core/files.h"

namespace gt {
namespace {
int64_t nanoseconds(const timespec& t) { return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec; }
int64_t mtime_of(const struct stat& st) { return nanoseconds(st.st_mtim); }
}  // namespace

MappedFile::MappedFile(const std::string& path) : MappedFile(open_to_read(path), path) {}

MappedFile::MappedFile(const Fd& fd, const std::string& path) : path_(path) {
  struct stat st {};
  GT_REQUIRE(::fstat(fd.get(), &st) == 0, Exit::kUsage, path, ": cannot be read: ", std::strerror(errno));
  size_ = st.st_size;
  mtime_ns_ = mtime_of(st);
  ctime_ns_ = nanoseconds(st.st_ctim);
  device_ = st.st_dev;
  inode_ = st.st_ino;
  void* p = size_ > 0 ? ::mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_SHARED, fd.get(), 0) : nullptr;
  const int error = errno;
  if (p == MAP_FAILED) {
    const int64_t bytes = std::exchange(size_, 0);
    fail(Exit::kUsage, path, ": mapping ", bytes, " bytes failed: ", std::strerror(error));
  }
  data_ = static_cast<const uint8_t*>(p);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<uint8_t*>(data_), static_cast<size_t>(size_));
}

void MappedFile::swap(MappedFile& o) noexcept {
  std::swap(path_, o.path_);
  std::swap(data_, o.data_);
  std::swap(size_, o.size_);
  std::swap(mtime_ns_, o.mtime_ns_);
  std::swap(ctime_ns_, o.ctime_ns_);
  std::swap(device_, o.device_);
  std::swap(inode_, o.inode_);
}

void MappedFile::will_need(int64_t begin, int64_t count) const {
  const int64_t page = 4096, from = std::max<int64_t>(begin, 0) / page * page;
  const int64_t to = std::min(begin + count, size_);
  if (data_ != nullptr && from < to)
    ::madvise(const_cast<uint8_t*>(data_) + from, static_cast<size_t>(to - from), MADV_WILLNEED);
}

std::string MappedFile::identity() const {
  return cat(device_, ' ', inode_, ' ', size_, ' ', mtime_ns_, ' ', ctime_ns_);
}

bool MappedFile::unchanged() const { return stamp_of(path_) == FileStamp{size_, mtime_ns_}; }

FileStamp stamp_of(const std::string& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) return {};
  return {st.st_size, mtime_of(st)};
}

}  // namespace gt
