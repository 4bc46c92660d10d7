// One job a checkpoints folder: a file .lock that names its owner and is touched while the owner lives. Works across
// machines that share the folder, where file locks of the system are not to be relied on.
#pragma once
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace gt {

struct LockTimes {
  std::chrono::milliseconds beat{10000};   // between two touches by the owner
  std::chrono::milliseconds stale{30000};  // without a touch an owner on another machine counts as dead
  std::chrono::milliseconds settle{1000};  // after a takeover: did another taker win?
};

class DirLock {
 public:
  // Makes the folder when it is missing. An owner whose process is gone (same machine and boot) is replaced at once,
  // one elsewhere after `stale` without a touch. kUsage naming the owner when it lives; kIo.
  explicit DirLock(const std::string& dir, LockTimes = {});
  ~DirLock();  // removes the file, unless somebody else took it
  DirLock(const DirLock&) = delete;
  DirLock& operator=(const DirLock&) = delete;

  // Throws kIo naming the new owner when somebody has taken the folder over: this process gave no sign of life for so
  // long that it counted as dead. Reads the file; any thread.
  void require_mine() const;

  // Who holds the folder now, for messages: "host node07, pid 4711"; "" when nobody that lives does. Waits for nothing:
  // an owner elsewhere counts as alive.
  static std::string living_owner(const std::string& dir);

 private:
  bool create();
  void take_over();
  void write(const std::string& path) const;
  void touch_until_stopped();
  const std::string path_;
  const LockTimes times_;
  std::string token_;  // names this object: host, boot, pid, start time, random number
  int64_t counter_ = 0;
  std::mutex mutex_;
  std::condition_variable stop_signal_;
  bool stop_ = false;
  std::thread beat_;
};

}  // namespace gt
