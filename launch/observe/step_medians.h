// Medians of what a process's steps measured, for the end of a run. No allocations after construction.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "launch/observe/metrics.h"

namespace gt {

// The newest values of one quantity.
class RecentValues {
 public:
  static constexpr int64_t kMost = int64_t{1} << 16;
  static constexpr size_t kSlow = 2;  // the first values, of slower steps

  explicit RecentValues(int64_t expected = 1);
  void add(double x);
  double median() const;  // of the known values, without the first kSlow ever added if there are more; NaN without any

 private:
  std::vector<double> values_;
  size_t count_ = 0;
};

class StepMedians {
 public:
  explicit StepMedians(int64_t steps);
  void add(const StepRecord&);
  int64_t steps() const { return steps_; }
  double seconds() const { return seconds_; }  // of all steps
  double tokens_per_second() const { return of(kRate); }
  double pipeline_bubble() const { return of(kPipeline); }
  // What is known of "15.5k tok/s, 66 ms a step, mfu 31.2 %, hfu 40.1 %, bubble 8.0 %, …"
  std::string text(double mfu) const;

 private:
  enum Quantity : size_t { kRate, kSeconds, kHfu, kBubble, kPipeline, kExposed, kDataWait, kNumQuantities };
  double of(Quantity q) const { return values_[q].median(); }
  std::array<RecentValues, kNumQuantities> values_;
  int64_t steps_ = 0;
  double seconds_ = 0;
};

}  // namespace gt
