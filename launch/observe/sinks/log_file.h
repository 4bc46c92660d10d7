// A log that a run appends to while it lives. A full disk or a removed file costs no record that memory can keep:
// writes are tried again, and a file that is gone is made again. One thread.
#pragma once
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gt {

class LogFile {
 public:
  enum class Form {
    kLines,
    kFrames
  };  // kLines: a file that ends in half a line, of a run that was killed, gets its end

  // Opens `path`, made where it is missing. `head`: begins every file that is empty, now or made again later. Throws
  // Error(kIo) naming path and reason; a full disk is none: the file is made when there is room.
  LogFile(std::string path, std::string head, Form);
  ~LogFile();  // writes what it can
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  void add(std::string record);  // a whole line with its newline, or a whole frame; kept until it is written
  void flush();                  // writes what was added; what cannot be written stays for the next call
  bool began_empty() const { return began_empty_; }  // when it was opened first
  // What happened since the last call: a write failed, it works again, the file was removed. Each is said once.
  std::vector<std::string> notices() { return std::exchange(notices_, {}); }
  // "" when everything is in the file; else how many records are not, and why.
  std::string unwritten() const;
  const std::string& path() const { return path_; }

 private:
  bool open();
  bool is_gone() const;
  void failed(int error);

  const std::string path_, head_;
  const Form form_;
  std::deque<std::string> records_;  // not written yet; of the first one `done_` bytes are
  size_t done_ = 0, bytes_ = 0;      // bytes_: of records_
  size_t lost_ = 0;                  // records that memory had no room for while nothing could be written
  bool began_empty_ = true, failing_ = false;
  int error_ = 0;  // of the write that failed last
  int fd_ = -1;
  std::vector<std::string> notices_;
};

}  // namespace gt
