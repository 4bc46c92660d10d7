// Progress of work of known size: import, export and evaluation.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

#include "launch/options/output.h"

namespace gt {

// "1.2 GB of 13.5 GB  9 %  812 MB/s  eta 15 s", with a unit "1,200 of 13,500 UNIT …", or a bar of at most `width`
// columns; width 0: not a terminal. unit "": bytes.
std::string progress_text(int64_t done, int64_t total, double seconds, int width, const std::string& unit = "");

// Shows the progress on standard error, at WorkLine's intervals.
class WorkProgress {
 public:
  explicit WorkProgress(int64_t total, std::string unit = "") : total_(total), unit_(std::move(unit)) {}
  void add(int64_t amount);

 private:
  using Clock = std::chrono::steady_clock;
  WorkLine line_;
  int64_t total_, done_ = 0;
  std::string unit_;
  Clock::time_point began_ = Clock::now(), shown_ = began_;
};

}  // namespace gt
