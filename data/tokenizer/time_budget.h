// Limits the CPU time of segmentation per byte of text. A hostile pattern or vocabulary can make it thousands of times
// slower than any in use without breaking another limit: it is refused by name instead.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace gt {

struct TimeLimit {
  double seconds = 5;              // allowed at once
  double seconds_per_byte = 2e-5;  // and for each byte; tokenizers in use need 1e-8 to 5e-7
};

// Sum over all texts and threads.
class TimeBudget {
 public:
  // `what`: for messages, what is slow and what to do.
  explicit TimeBudget(std::string what, TimeLimit limit = {}) : what_(std::move(what)), limit_(limit) {}

  // Meter of one thread. Measures from the first call of check() on.
  class Meter {
   public:
    explicit Meter(TimeBudget& budget) : budget_(budget) {}
    // Adds the CPU time of this thread since the last call and the bytes processed in it. Throws kUsage beyond the
    // limit.
    void check(size_t bytes);

   private:
    TimeBudget& budget_;
    int64_t last_ = -1;
  };

 private:
  const std::string what_;
  const TimeLimit limit_;
  std::atomic<int64_t> nanoseconds_{0}, bytes_{0};
};

}  // namespace gt
