// Lock on a checkpoints folder, one job at a time: a .lock file that names its owner, who touches it periodically.
// Works across machines that share the folder, where system file locks are unreliable.
#pragma once
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace gt {

struct LockTimes {
  std::chrono::milliseconds beat{10000};   // interval between two touches by the owner
  std::chrono::milliseconds stale{30000};  // without a touch for this long, an owner on another machine counts as dead
  std::chrono::milliseconds settle{1000};  // wait after a takeover, to detect a competing one
};

class DirLock {
 public:
  // Creates the folder when missing. Replaces an owner whose process is gone (same machine and boot) at once, one on
  // another machine after `stale` without a touch. kUsage naming the owner while it is alive; kIo.
  explicit DirLock(const std::string& dir, LockTimes = {});
  ~DirLock();  // removes the file, unless another process took the lock over
  DirLock(const DirLock&) = delete;
  DirLock& operator=(const DirLock&) = delete;

  // Throws kIo naming the new owner when another process has taken the lock over: this one had been silent long enough
  // to count as dead. Reads the file. Thread-safe.
  void require_mine() const;

  // Returns the current live owner, for messages: "host node07, pid 4711"; "" when there is none. Does not wait: an
  // owner on another machine counts as alive.
  static std::string living_owner(const std::string& dir);

 private:
  bool create();
  void take_over();
  void write(const std::string& path) const;
  void touch_until_stopped();
  const std::string path_;
  const LockTimes times_;
  std::string token_;  // identifies this object: host, boot, pid, start time, random number
  int64_t counter_ = 0;
  std::mutex mutex_;
  std::condition_variable stop_signal_;
  bool stop_ = false;
  std::thread beat_;
};

}  // namespace gt
