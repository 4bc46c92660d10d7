// Files that a run writes into its own folders, where others may have put something: never through a link, never into a
// pipe. A path that a user names as an output is another matter: it may be a link.
#pragma once
#include <string>
#include <string_view>

namespace gt {

// Opens for writing. `flags` as in open(2), the umask decides who may read it. -1 with errno set: ELOOP for a link,
// ENODEV for a pipe, a device or the like.
int open_run_file(const std::string& path, int flags);
std::string open_error(int error);  // "is a symbolic link, …": what errno of open_run_file means

// Replaces the content, or appends to it with one write. Throw Error(kIo) naming path and reason.
void write_run_file(const std::string& path, std::string_view content);
void append_run_file(const std::string& path, std::string_view content);

// The lock of a run's folder, gone with the process that holds it: two runs would mix their logs. Where the file system
// has no locks there is none.
class RunLock {
 public:
  // Throws kUsage naming the owner when another process holds it, kIo when its file is a link.
  explicit RunLock(const std::string& run_dir);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  bool take();
  const std::string path_;
  int fd_ = -1;
};

}  // namespace gt
