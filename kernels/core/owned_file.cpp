#include "kernels/core/owned_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "kernels/core/check.h"

namespace gt {
namespace {

constexpr const char* kMark = "-owned-";

bool is_named_owned(const std::string& name) {
  long pid = 0;
  int end = 0;
  return std::sscanf(name.c_str(), "gpttrain-%ld%n", &pid, &end) == 1 &&
         name.compare(static_cast<size_t>(end), std::char_traits<char>::length(kMark), kMark) == 0;
}

// Takes the lock of the file's owner; it belongs to this opening of the file, whichever process number it has.
bool lock(int fd) {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  return fcntl(fd, F_OFD_SETLK, &whole) == 0;
}

bool has_name(int fd, const std::string& path) {
  struct stat here {
  }, there{};
  return fstat(fd, &here) == 0 && lstat(path.c_str(), &there) == 0 && here.st_ino == there.st_ino &&
         here.st_dev == there.st_dev;
}

void remove_if_ownerless(const std::string& path) {
  struct stat s {};
  if (lstat(path.c_str(), &s) != 0 || !S_ISREG(s.st_mode) || s.st_uid != geteuid()) return;
  const Fd fd(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (fd && lock(fd.get()) && has_name(fd.get(), path)) unlink(path.c_str());
}

}  // namespace

OwnedFile create_owned_file(const std::string& folder) {
  constexpr int kTries = 100;  // another process may take a new file for an ownerless one before it is locked
  for (int i = 0; i < kTries; ++i) {
    OwnedFile out;
    out.path = cat(folder, "/gpttrain-", getpid(), kMark, "XXXXXX");
    out.fd = Fd(mkostemp(out.path.data(), O_CLOEXEC));
    if (!out.fd) return out;
    const bool locked = lock(out.fd.get());
    if (has_name(out.fd.get(), out.path) && (locked || (errno != EAGAIN && errno != EACCES))) return out;
    unlink(out.path.c_str());
  }
  errno = EBUSY;
  return {};
}

void remove_ownerless_files(const std::string& folder) {
  std::error_code ec;
  std::vector<std::string> found;
  for (const auto& e : std::filesystem::directory_iterator(folder, ec))
    if (is_named_owned(e.path().filename().string())) found.push_back(e.path().string());
  for (const std::string& path : found) remove_if_ownerless(path);
}

}  // namespace gt
