// TensorBoard event files, encoded by hand: TFRecord framing around the protobuf wire form of Event messages. No
// protobuf library (Debian's and SentencePiece's cannot live in one process). Knows tags and numbers, not what they
// mean.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launch/observe/sinks/log_file.h"

namespace gt {

// One framed record: u64 length, masked CRC-32C of it, data, masked CRC-32C of the data; little-endian.
std::string tfrecord(std::string_view data);

// Encoded Event messages, not framed. wall: seconds since 1970.
std::string event_file_version(double wall);
std::string event_session_start(double wall, int64_t step);
std::string event_scalar(double wall, int64_t step, std::string_view tag, float value);
std::string event_text(double wall, int64_t step, std::string_view tag, std::string_view text);

// One event file of one start of a run. Records are buffered; nothing but flush() and close touches the file (LogFile
// says what becomes of a full disk).
class TensorBoardFile {
 public:
  // Makes events.out.tfevents.<unix seconds>.<host>.<pid>.<n> in `folder` and writes the version and the START record
  // that makes readers drop what an earlier start of the run wrote from first_step on. Throws Error(kIo).
  TensorBoardFile(const std::string& folder, int64_t first_step, double wall);
  void scalar(std::string_view tag, double value, int64_t step, double wall);
  void text(std::string_view tag, std::string_view text, int64_t step, double wall);
  // The run went back: readers drop what this file and those before it hold from `step` on.
  void start_again(int64_t step, double wall) { add(event_session_start(wall, step)); }
  void flush();
  std::vector<std::string> notices() { return file_.notices(); }
  std::string unwritten() const { return file_.unwritten(); }
  const std::string& path() const { return file_.path(); }

 private:
  void add(std::string_view event);
  LogFile file_;
  size_t waiting_ = 0;  // bytes added since the last flush
};

}  // namespace gt
