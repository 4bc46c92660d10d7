// When a run saves whose checkpoint.every is auto: as often as costs least time in all, by what a save costs and how
// often a job fails. J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974.
// Knows clocks and no checkpoints; one rank asks it and tells the others.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace gt {

// sqrt(2 C T) seconds: C is how long training stands still for a save, T the mean time between failures.
double young_interval(double stall_seconds, double mtbf_seconds);

// What checkpoint.mtbf_hours 0 means: one failure in 50000 hours of a rank, at least 0.5 and at most 24 hours.
double default_mtbf_hours(int world);

class SaveTimer {
 public:
  // Before the first save nothing is known of its cost: that is after five minutes, and where failures come more often
  // than that, after mtbf_seconds.
  SaveTimer(double mtbf_seconds, double now);

  bool due(double now) const { return now >= next_; }
  void saved(double now, double stall_seconds);  // a save was begun: the next one is an interval away
  // By the median of the stalls; never less than a minute or mtbf_seconds, for disks and logs have limits too.
  double interval() const;

 private:
  const double mtbf_;
  double next_;
  std::vector<double> stalls_;  // the newest
};

}  // namespace gt
