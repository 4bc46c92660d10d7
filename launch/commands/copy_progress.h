// Progress of a copy of known size: import and export.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

#include "launch/commands/output.h"

namespace gt {

// "1.2 GB of 13.5 GB  9 %  812 MB/s  eta 15 s", or a bar of at most `width` columns; width 0: not a terminal.
std::string copy_text(int64_t done, int64_t total, double seconds, int width);

// Shows the progress on standard error, at WorkLine's intervals.
class CopyProgress {
 public:
  explicit CopyProgress(int64_t total_bytes) : total_(total_bytes) {}
  void add(int64_t bytes);

 private:
  using Clock = std::chrono::steady_clock;
  WorkLine line_;
  int64_t total_, done_ = 0;
  Clock::time_point began_ = Clock::now(), shown_ = began_;
};

}  // namespace gt
