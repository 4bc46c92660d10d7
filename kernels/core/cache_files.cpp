#include "kernels/core/cache_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "kernels/core/check.h"

namespace gt {
namespace {

namespace fs = std::filesystem;

std::string octal(mode_t mode) {
  char text[8];
  std::snprintf(text, sizeof text, "%03o", static_cast<unsigned>(mode & 07777));
  return text;
}

// Returns why another user can have written what has this status, else "".
std::string writers_problem(const std::string& path, const struct stat& s) {
  if (s.st_uid != ::geteuid() && s.st_uid != 0)
    return cat(path, ": belongs to user ", s.st_uid, ", this is user ", ::geteuid());
  if ((s.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return cat(path, ": ", (s.st_mode & S_IWOTH) != 0 ? "others" : "its group", " may write it (mode ",
               octal(s.st_mode), "); chmod go-w makes it yours alone");
  return "";
}

// In a folder that everybody may write, the next name of the path can be replaced, except where /tmp's bit forbids it.
std::string parents_problem(const std::string& folder) {
  std::error_code ec;
  for (fs::path at = fs::weakly_canonical(folder, ec).parent_path(); !ec && at.has_relative_path();
       at = at.parent_path()) {
    struct stat s {};
    if (::stat(at.c_str(), &s) == 0 && (s.st_mode & S_IWOTH) != 0 && (s.st_mode & S_ISVTX) == 0)
      return cat(folder, ": everybody may rename it: ", at.string(), " has mode ", octal(s.st_mode));
  }
  return "";
}

std::string parent_of(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

std::string write_bytes(int fd, std::string_view content) {
  while (!content.empty()) {
    const ssize_t n = ::write(fd, content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return std::strerror(n < 0 ? errno : EIO);
    content.remove_prefix(static_cast<size_t>(n));
  }
  return ::fsync(fd) == 0 || errno == EINVAL ? "" : std::strerror(errno);
}

}  // namespace

std::string cache_folder() {
  if (const char* x = std::getenv("XDG_CACHE_HOME"); x != nullptr && *x != '\0') return std::string(x) + "/gpttrain";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return std::string(home) + "/.cache/gpttrain";
  return "";
}

std::string folder_problem(const std::string& folder) {
  const Fd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return errno == ENOENT ? "" : cat(folder, ": cannot be read: ", std::strerror(errno));
  struct stat s {};
  if (::fstat(fd.get(), &s) != 0) return cat(folder, ": cannot be read: ", std::strerror(errno));
  const std::string problem = writers_problem(folder, s);
  return problem.empty() ? parents_problem(folder) : problem;
}

std::string make_cache_folder(const std::string& folder) {
  std::error_code ec;
  fs::path made;
  for (const fs::path& name : fs::path(folder)) {
    made /= name;
    const int error = ::mkdir(made.c_str(), 0700) == 0 ? 0 : errno;  // of a read-only file system too, if it exists
    if (error != 0 && error != EEXIST && !fs::is_directory(made, ec))
      return cat(made.string(), ": cannot be made: ", std::strerror(error));
  }
  return folder_problem(folder);
}

CachedFile open_own(const std::string& path) {
  struct stat s {};
  if (::lstat(path.c_str(), &s) != 0 && (errno == ENOENT || errno == ENOTDIR)) return {};
  if (S_ISLNK(s.st_mode)) return {Fd(), path + ": is a symbolic link", false};
  if (s.st_mode != 0 && !S_ISREG(s.st_mode)) return {Fd(), path + ": is no regular file", false};
  Fd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd && errno == ENOENT) return {};
  if (!fd || ::fstat(fd.get(), &s) != 0) return {Fd(), cat(path, ": cannot be read: ", std::strerror(errno)), false};
  if (!S_ISREG(s.st_mode)) return {Fd(), path + ": is no regular file", false};
  std::string problem = writers_problem(path, s);
  if (!problem.empty()) return {Fd(), std::move(problem), true};
  return {std::move(fd), "", false};
}

bool keeps_owners(const std::string& folder) {
  std::string name = folder + "/.gpttrain-XXXXXX";
  const Fd fd(::mkostemp(name.data(), O_CLOEXEC));  // mode 0600
  if (!fd) return true;
  struct stat s {};
  const bool own = ::fstat(fd.get(), &s) != 0 || writers_problem(name, s).empty();
  ::unlink(name.c_str());
  return own;
}

CachedFile open_cached(const std::string& path) {
  if (std::string problem = folder_problem(parent_of(path)); !problem.empty()) return {Fd(), std::move(problem), true};
  return open_own(path);
}

std::string read_cached(const std::string& path, int64_t limit, std::string* problem) {
  CachedFile file = open_cached(path);
  std::string out;
  while (file.fd) {
    char block[1 << 14];
    const ssize_t n = ::read(file.fd.get(), block, sizeof block);
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) break;
    if (n > 0) out.append(block, static_cast<size_t>(n));
    if (n < 0) file.problem = cat(path, ": cannot be read: ", std::strerror(errno));
    if (static_cast<int64_t>(out.size()) > limit) file.problem = cat(path, ": has more than ", limit, " bytes");
    if (!file.problem.empty()) {
      out.clear();
      break;
    }
  }
  if (problem != nullptr) *problem = file.problem;
  return out;
}

Fd create_own(const std::string& path) {
  Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  GT_REQUIRE(fd, Exit::kIo, path, ": cannot be made: ", std::strerror(errno));
  return fd;
}

std::string write_cached(const std::string& path, std::string_view content) {
  static std::atomic<int> count{0};  // ranks that are threads may write the same file
  if (std::string problem = make_cache_folder(parent_of(path)); !problem.empty()) return problem;
  const std::string aside = cat(path, ".tmp.", ::getpid(), '.', ++count);
  ::unlink(aside.c_str());  // left by a process that was killed
  std::string why;
  try {
    Fd fd = create_own(aside);
    if (const std::string reason = write_bytes(fd.get(), content); !reason.empty())
      why = cat(aside, ": cannot be written: ", reason);
    if (::close(fd.release()) != 0 && why.empty()) why = cat(aside, ": cannot be written: ", std::strerror(errno));
  } catch (const Error& e) { return e.what(); }
  if (why.empty() && ::rename(aside.c_str(), path.c_str()) != 0)
    why = cat(path, ": cannot be written: ", std::strerror(errno));
  if (!why.empty()) ::unlink(aside.c_str());
  return why;
}

}  // namespace gt
