#include "checkpoint/store/vfs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <vector>

#include "kernels/core/text.h"

namespace gt {
namespace {
int checked(int r) { return r < 0 ? -errno : r; }
}  // namespace

int Vfs::open(const std::string& path, int flags, int mode) {
  return checked(::open(path.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, mode));
}
int Vfs::close(int fd) { return checked(::close(fd)); }
int64_t Vfs::pwrite(int fd, const void* data, int64_t bytes, int64_t offset) {
  const ssize_t n = ::pwrite(fd, data, static_cast<size_t>(bytes), offset);
  return n < 0 ? -errno : n;
}
int64_t Vfs::pread(int fd, void* data, int64_t bytes, int64_t offset) {
  const ssize_t n = ::pread(fd, data, static_cast<size_t>(bytes), offset);
  return n < 0 ? -errno : n;
}
int Vfs::fsync(int fd) { return checked(::fsync(fd)); }
int Vfs::fallocate(int fd, int64_t bytes) {
  if (bytes == 0 || ::fallocate(fd, 0, 0, bytes) == 0) return 0;
  return errno == EOPNOTSUPP || errno == ENOSYS ? 0 : -errno;
}
int64_t Vfs::size(int fd) {
  struct stat st {};
  if (::fstat(fd, &st) < 0) return -errno;
  return S_ISREG(st.st_mode) ? st.st_size : -EINVAL;
}
int Vfs::rename(const std::string& from, const std::string& to) { return checked(::rename(from.c_str(), to.c_str())); }
int Vfs::unlink(const std::string& path) { return checked(::unlink(path.c_str())); }
int Vfs::mkdir(const std::string& path, int mode) { return checked(::mkdir(path.c_str(), static_cast<mode_t>(mode))); }
int Vfs::rmdir(const std::string& path) { return checked(::rmdir(path.c_str())); }
void Vfs::drop_cache(int fd) { ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); }
void Vfs::will_read(int fd, int64_t bytes, int64_t offset) { ::posix_fadvise(fd, offset, bytes, POSIX_FADV_WILLNEED); }

void fail_io(const std::string& operation, int negative_errno) {
  throw IoError(cat(operation, ": ", std::strerror(-negative_errno), " (errno ", -negative_errno, ")"),
                -negative_errno);
}

File File::create(Vfs& vfs, const std::string& path) {
  int fd = -EINTR;
  while (fd == -EINTR) fd = vfs.open(path, O_RDWR | O_CREAT | O_TRUNC, 0666);
  if (fd == -ELOOP) fail_io(path + ": is a symbolic link, and nothing is written through one; remove it", fd);
  if (fd < 0) fail_io("creation of " + path, fd);
  return {vfs, path, fd};
}

File File::open(Vfs& vfs, const std::string& path) {
  int fd = -EINTR;
  while (fd == -EINTR) fd = vfs.open(path, O_RDONLY | O_NONBLOCK, 0);  // do not block on a pipe
  GT_REQUIRE(fd != -ELOOP, Exit::kDamaged, path, ": is a symbolic link; checkpoints hold plain files only");
  if (fd < 0) fail_io("opening of " + path, fd);
  File f(vfs, path, fd);
  GT_REQUIRE(vfs.size(fd) != -EINVAL, Exit::kDamaged, path, ": is not a regular file");
  return f;
}

std::optional<File> File::open_direct(Vfs& vfs, const std::string& path) {
  int fd = -EINTR;
  while (fd == -EINTR) fd = vfs.open(path, O_WRONLY | O_DIRECT, 0);
  if (fd == -EINVAL) return std::nullopt;
  if (fd < 0) fail_io("opening of " + path, fd);
  return File(vfs, path, fd);
}

// Destructors close without throwing: they run during unwinding, or after reads.
File::~File() {
  if (fd_ < 0) return;
  try {
    vfs_->close(fd_);
  } catch (...) {  // a test's simulated crash
  }
}

int64_t File::size() const {
  const int64_t n = vfs_->size(fd_);
  if (n < 0) fail_io("size of " + path_, static_cast<int>(n));
  return n;
}

void File::reserve(int64_t bytes) const {
  int r = -EINTR;
  while (r == -EINTR) r = vfs_->fallocate(fd_, bytes);
  if (r < 0) fail_io(cat("reserving ", bytes, " bytes for ", path_), r);
}

void File::write(const void* data, int64_t bytes, int64_t offset) const {
  const auto* p = static_cast<const char*>(data);
  for (int64_t done = 0; done < bytes;) {
    const int64_t n = vfs_->pwrite(fd_, p + done, bytes - done, offset + done);
    if (n == -EINTR) continue;
    if (n <= 0)
      fail_io(cat("write of ", path_, ", ", bytes - done, " bytes at ", offset + done),
              n < 0 ? static_cast<int>(n) : -EIO);
    done += n;
  }
}

void File::read(void* data, int64_t bytes, int64_t offset) const {
  auto* p = static_cast<char*>(data);
  for (int64_t done = 0; done < bytes;) {
    const int64_t n = vfs_->pread(fd_, p + done, bytes - done, offset + done);
    if (n == -EINTR) continue;
    if (n < 0) fail_io(cat("read of ", path_, ", ", bytes - done, " bytes at ", offset + done), static_cast<int>(n));
    GT_REQUIRE(n > 0, Exit::kDamaged, path_, ": ends at byte ", offset + done, ", expected ", bytes, " bytes at ",
               offset);
    done += n;
  }
}

void File::sync() const {
  if (const int r = vfs_->fsync(fd_); r < 0) fail_io("fsync of " + path_, r);
}

void File::close() {
  const int fd = fd_;
  fd_ = -1;
  if (const int r = vfs_->close(fd); r < 0 && r != -EINTR) fail_io("close of " + path_, r);
}

void write_synced(Vfs& vfs, const std::string& path, std::string_view bytes) {
  File f = File::create(vfs, path);
  f.write(bytes.data(), static_cast<int64_t>(bytes.size()), 0);
  f.sync();
  f.close();
}

namespace {
// Returns 0, or -errno where the file system cannot sync folders.
int sync_folder(Vfs& vfs, const std::string& path) {
  const int fd = vfs.open(path + "/.", O_RDONLY | O_DIRECTORY, 0);  // the folder itself may be a link
  if (fd < 0) fail_io("opening of folder " + path, fd);
  const int r = vfs.fsync(fd);
  vfs.close(fd);
  if (r < 0 && r != -EINVAL && r != -EOPNOTSUPP && r != -ENOSYS) fail_io("fsync of folder " + path, r);
  return std::min(r, 0);
}
}  // namespace

void sync_directory(Vfs& vfs, const std::string& path) {
  const int r = sync_folder(vfs, path);
  static std::atomic<bool> warned{false};
  if (r < 0 && !warned.exchange(true))
    std::fprintf(stderr,
                 "warning: %s: its file system cannot sync folders (%s): what was saved last may be missing after a "
                 "power failure\n",
                 printable(path).c_str(), std::strerror(-r));
}

void rename_file(Vfs& vfs, const std::string& from, const std::string& to) {
  if (const int r = vfs.rename(from, to); r < 0) fail_io("rename of " + from + " to " + to, r);
}

void make_directory(Vfs& vfs, const std::string& path) {
  int r = vfs.mkdir(path, 0777);
  const std::string parent = std::filesystem::path(path).parent_path().string();
  if (r == -ENOENT && !parent.empty() && parent != path) {
    make_directory(vfs, parent);
    r = vfs.mkdir(path, 0777);
  }
  if (r == -EEXIST) return;
  if (r < 0) fail_io("creation of folder " + path, r);
  sync_folder(vfs, parent.empty() ? "." : parent);
}

void remove_tree(Vfs& vfs, const std::string& path) {
  std::error_code ec;
  if (std::filesystem::is_symlink(path, ec)) {
    if (const int r = vfs.unlink(path); r < 0 && r != -ENOENT) fail_io("deletion of link " + path, r);
    return;
  }
  std::vector<std::filesystem::directory_entry> entries;
  for (std::filesystem::directory_iterator it(path, ec), end; !ec && it != end; it.increment(ec))
    entries.push_back(*it);
  if (ec) fail_io("reading of folder " + path, -ec.value());
  for (const auto& entry : entries) {
    const std::string name = entry.path().string();
    if (entry.symlink_status(ec).type() == std::filesystem::file_type::directory)
      remove_tree(vfs, name);
    else if (const int r = vfs.unlink(name); r < 0 && r != -ENOENT)
      fail_io("deletion of " + name, r);
  }
  if (const int r = vfs.rmdir(path); r < 0 && r != -ENOENT) fail_io("deletion of folder " + path, r);
}

std::string read_file(Vfs& vfs, const std::string& path, int64_t limit) {
  const File f = File::open(vfs, path);
  const int64_t n = f.size();
  GT_REQUIRE(n <= limit, Exit::kDamaged, path, ": ", n, " bytes, at most ", limit, " expected");
  std::string out(static_cast<size_t>(n), '\0');
  f.read(out.data(), n, 0);
  return out;
}

}  // namespace gt
