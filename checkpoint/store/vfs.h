// File operations of checkpoints, one virtual function each, so tests can fail, crash or count the n-th call; and
// helpers on top: complete writes and reads, synced files. Format-agnostic. libhdf5 bypasses this layer: it never
// writes a file that is part of a checkpoint.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/core/check.h"

namespace gt {

// The real file system. Each function returns what the POSIX call of that name returns, with -errno instead of -1.
class Vfs {
 public:
  virtual ~Vfs() = default;
  virtual int open(const std::string& path, int flags, int mode);  // O_NOFOLLOW | O_CLOEXEC are added
  virtual int close(int fd);
  virtual int64_t pwrite(int fd, const void* data, int64_t bytes, int64_t offset);
  virtual int64_t pread(int fd, void* data, int64_t bytes, int64_t offset);
  virtual int fsync(int fd);
  virtual int fallocate(int fd, int64_t bytes);  // 0 where the file system does not support it
  virtual int64_t size(int fd);                  // -EINVAL when not a regular file
  virtual int rename(const std::string& from, const std::string& to);
  virtual int unlink(const std::string& path);
  virtual int mkdir(const std::string& path, int mode);
  virtual int rmdir(const std::string& path);
  virtual void drop_cache(int fd);                                // hint: cached pages of the file may be evicted
  virtual void will_read(int fd, int64_t bytes, int64_t offset);  // hint: start readahead
};

// A failed call: exit code kIo, with the errno for callers that distinguish errors.
class IoError : public Error {
 public:
  IoError(const std::string& what, int errno_value) : Error(what, Exit::kIo), errno_(errno_value) {}
  int errno_value() const { return errno_; }

 private:
  int errno_;
};

// "write of step-1/rank-00000.h5, 4096 bytes at 8192: No space left on device (errno 28)"
[[noreturn]] void fail_io(const std::string& operation, int negative_errno);

// An open file. Retries interrupted and short calls; anything else throws IoError. fsync is never retried.
class File {
 public:
  // Creates an empty file for writing, with the permissions the umask allows. Never follows a link.
  static File create(Vfs&, const std::string& path);
  static File open(Vfs&, const std::string& path);  // for reading; kDamaged when a link or not a regular file
  // Opens an existing file with O_DIRECT, for writes of whole aligned sectors; nullopt where the file system does not
  // support it.
  static std::optional<File> open_direct(Vfs&, const std::string& path);
  File(File&& o) noexcept : vfs_(o.vfs_), path_(std::move(o.path_)), fd_(o.fd_) { o.fd_ = -1; }
  File& operator=(File&&) = delete;
  ~File();

  const std::string& path() const { return path_; }
  int64_t size() const;
  void reserve(int64_t bytes) const;
  void write(const void* data, int64_t bytes, int64_t offset) const;
  void read(void* data, int64_t bytes, int64_t offset) const;  // kDamaged on premature end of file
  void sync() const;
  void drop_cache() const { vfs_->drop_cache(fd_); }
  void will_read(int64_t bytes, int64_t offset) const { vfs_->will_read(fd_, bytes, offset); }
  void close();  // checks errors of close: some file systems report lost writes here

 private:
  File(Vfs& vfs, std::string path, int fd) : vfs_(&vfs), path_(std::move(path)), fd_(fd) {}
  Vfs* vfs_;
  std::string path_;
  int fd_ = -1;
};

void write_synced(Vfs&, const std::string& path, std::string_view bytes);
// Makes the names in a folder durable. File systems without that call (CIFS, some of FUSE: EINVAL, EOPNOTSUPP) make
// them so by themselves or not at all: the first of them is a warning on standard error, and saving goes on.
void sync_directory(Vfs&, const std::string& path);
void rename_file(Vfs&, const std::string& from, const std::string& to);
void make_directory(Vfs&, const std::string& path);  // with parents; each new one is synced into its parent
// Removes a directory tree; throws IoError on the first failure. Links, including `path` itself, are unlinked and never
// followed.
void remove_tree(Vfs&, const std::string& path);
// Reads a whole file. kDamaged when it is larger than `limit`.
std::string read_file(Vfs&, const std::string& path, int64_t limit);

}  // namespace gt
