// Append-only log file of a running job. A full disk or a removed file loses no record that fits in memory: writes are
// retried and a missing file is recreated. Not thread-safe.
#pragma once
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gt {

class LogFile {
 public:
  enum class Form { kLines, kFrames };  // kLines: an incomplete last line, left by a killed run, is terminated first

  // Opens or creates `path`. `head` is written to every empty file, also after recreation. Throws Error(kIo) naming
  // path and reason, except for a full disk: the file is then created once there is space.
  LogFile(std::string path, std::string head, Form);
  ~LogFile();  // writes what it can
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  void add(std::string record);  // a line with its newline, or a frame; kept until it is written
  void flush();                  // writes the pending records; those that fail remain for the next call
  bool was_empty() const { return began_empty_; }  // when first opened
  // Returns the events since the last call: a write failed, writing works again, the file was removed. Each is reported
  // once.
  std::vector<std::string> notices() { return std::exchange(notices_, {}); }
  // Returns "" if everything is in the file, else the number of missing records and the reason.
  std::string unwritten() const;
  const std::string& path() const { return path_; }

 private:
  bool open();
  bool is_gone() const;
  void failed(int error);

  const std::string path_, head_;
  const Form form_;
  std::deque<std::string> records_;  // pending; `done_` bytes of the first one are written
  size_t done_ = 0, bytes_ = 0;      // bytes_: of records_
  size_t lost_ = 0;                  // records dropped because memory was full while writes failed
  bool began_empty_ = true, failing_ = false;
  int error_ = 0;  // of the last failed write
  int fd_ = -1;
  std::vector<std::string> notices_;
};

}  // namespace gt
