// Safe writes into run folders, which others may have tampered with: never through a symbolic link or into a pipe.
// Output paths given by the user are not restricted this way.
#pragma once
#include <string>
#include <string_view>

namespace gt {

// Opens for writing. `flags` as in open(2); permissions follow the umask. Returns -1 with errno set: ELOOP for a link,
// ENODEV for a pipe or device.
int open_run_file(const std::string& path, int flags);
std::string open_error(int error);  // text of an errno of open_run_file: "is a symbolic link, …"

// Replace the content, or append to it with one write. Throw Error(kIo) naming path and reason.
void write_run_file(const std::string& path, std::string_view content);
void append_run_file(const std::string& path, std::string_view content);

// Lock of a run folder, released when its process ends; two runs in one folder would interleave their logs. No effect
// on file systems without locks.
class RunLock {
 public:
  // Whether a process holds the lock of a run folder: kHeld, or kFree although its file is there, as after a kill.
  // kNone: there is no lock file, or locks do not work here.
  enum class State : uint8_t { kNone, kFree, kHeld };
  static State state_of(const std::string& run_dir);

  // Throws kUsage naming the owner if another process holds the lock, kIo if the lock file is a link.
  explicit RunLock(const std::string& run_dir);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  bool take(bool last);
  const std::string path_;
  int fd_ = -1;
};

}  // namespace gt
