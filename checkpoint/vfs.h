// The file calls of checkpoints, one virtual function each, so that tests can fail, crash or count the n-th call; and
// what is built on them: whole writes, whole reads, synced files. Knows no format. libhdf5 does not go through here: it
// never writes a file that is part of a checkpoint.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/core/check.h"

namespace gt {

// The real file system. Every function returns what its POSIX namesake returns, with -errno instead of -1.
class Vfs {
 public:
  virtual ~Vfs() = default;
  virtual int open(const std::string& path, int flags, int mode);  // O_NOFOLLOW | O_CLOEXEC are added
  virtual int close(int fd);
  virtual int64_t pwrite(int fd, const void* data, int64_t bytes, int64_t offset);
  virtual int64_t pread(int fd, void* data, int64_t bytes, int64_t offset);
  virtual int fsync(int fd);
  virtual int fallocate(int fd, int64_t bytes);  // 0 where the file system cannot
  virtual int64_t size(int fd);                  // -EINVAL when it is no regular file
  virtual int rename(const std::string& from, const std::string& to);
  virtual int unlink(const std::string& path);
  virtual int mkdir(const std::string& path, int mode);
  virtual int rmdir(const std::string& path);
  virtual void drop_cache(int fd);  // a hint: what was read or written of it may leave memory
  virtual void will_read(int fd, int64_t bytes, int64_t offset);  // a hint: the disk may begin
};

// A failed call: exit code kIo, and the errno for those who treat some of them differently.
class IoError : public Error {
 public:
  IoError(const std::string& what, int errno_value) : Error(what, Exit::kIo), errno_(errno_value) {}
  int errno_value() const { return errno_; }

 private:
  int errno_;
};

// "write of step-1/rank-00000.h5, 4096 bytes at 8192: No space left on device (errno 28)"
[[noreturn]] void fail_io(const std::string& operation, int negative_errno);

// An open file. Interrupted and short calls continue; anything else throws IoError. fsync is never retried.
class File {
 public:
  // Empty, for writing, with the permissions that the umask allows. Never through a link.
  static File create(Vfs&, const std::string& path);
  static File open(Vfs&, const std::string& path);    // for reading; kDamaged when it is a link or no regular file
  // An existing file, for writes of whole aligned sectors past the kernel's copy; nullopt where the file system has
  // none.
  static std::optional<File> open_direct(Vfs&, const std::string& path);
  File(File&& o) noexcept : vfs_(o.vfs_), path_(std::move(o.path_)), fd_(o.fd_) { o.fd_ = -1; }
  File& operator=(File&&) = delete;
  ~File();

  const std::string& path() const { return path_; }
  int64_t size() const;
  void reserve(int64_t bytes) const;
  void write(const void* data, int64_t bytes, int64_t offset) const;
  void read(void* data, int64_t bytes, int64_t offset) const;  // kDamaged when the file ends before
  void sync() const;
  void drop_cache() const { vfs_->drop_cache(fd_); }
  void will_read(int64_t bytes, int64_t offset) const { vfs_->will_read(fd_, bytes, offset); }
  void close();  // errors of close count: some file systems report lost writes here

 private:
  File(Vfs& vfs, std::string path, int fd) : vfs_(&vfs), path_(std::move(path)), fd_(fd) {}
  Vfs* vfs_;
  std::string path_;
  int fd_ = -1;
};

void write_synced(Vfs&, const std::string& path, std::string_view bytes);
void sync_directory(Vfs&, const std::string& path);
void rename_file(Vfs&, const std::string& from, const std::string& to);
void make_directory(Vfs&, const std::string& path);  // with parents; each new one synced into its parent
// Removes a directory and what is in it; throws IoError on the first failure. Follows no link: `path` and everything
// below it that is one is unlinked, and what it points to stays.
void remove_tree(Vfs&, const std::string& path);
// kDamaged when it is larger than `limit`.
std::string read_file(Vfs&, const std::string& path, int64_t limit);

}  // namespace gt
