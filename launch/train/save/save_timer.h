// Save interval for checkpoint.every auto: minimizes total lost time, given the cost of a save and the failure rate. J.
// W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974. Independent of
// checkpoints. Used on one rank, which broadcasts the result.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace gt {

// Returns sqrt(2 C T) seconds. C: stall of training per save; T: mean time between failures.
double young_interval(double stall_seconds, double mtbf_seconds);

// Default of checkpoint.mtbf_hours: one failure per 50000 rank hours, at least 0.5 and at most 24 hours.
double default_mtbf_hours(int world);

class SaveTimer {
 public:
  // The cost of the first save is unknown: it is due after five minutes, or after mtbf_seconds if that is less.
  SaveTimer(double mtbf_seconds, double now);

  bool due(double now) const { return now >= next_; }
  void saved(double now, double stall_seconds);  // call when a save was started; the next one is an interval later
  // Interval from the median of the stalls. At least a minute or mtbf_seconds, whichever is less, to limit disk and log
  // usage.
  double interval() const;

 private:
  const double mtbf_;
  double next_;
  std::vector<double> stalls_;  // most recent
};

}  // namespace gt
