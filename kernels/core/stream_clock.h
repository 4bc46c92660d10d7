// When the work on a stream was done, on the host's clock.
#pragma once
#include <vector>

#include "kernels/core/device.h"

namespace gt {

// Marks between pieces of a stream's work. On a device that computes behind the host's back they are events, which cost
// no wait; their times can be had when the host knows by other means that the marked work is over. Elsewhere, work is
// done when a call returns, and marks are the time of the call. Reused from series to series: warm, it takes no memory.
class StreamClock {
 public:
  StreamClock(const DeviceApi&, Stream);
  ~StreamClock();
  StreamClock(const StreamClock&) = delete;
  StreamClock& operator=(const StreamClock&) = delete;

  bool behind() const { return computes_behind(api_); }
  void restart() { count_ = 0; }  // a new series; times of the one before are gone
  size_t mark();                  // 0, 1, 2 … in this series: all that has been queued is done
  // The host has just seen that the work before `mark` is over, or another clock of the device knows when. Only what
  // at() adds to the distances between marks depends on how just that was.
  void anchor(size_t mark, double seconds);
  void anchor(const StreamClock& to);
  // Seconds, as now() of host.h gives them. Behind: after anchor() in this series, and the work before the mark is over.
  double at(size_t mark) const;

 private:
  const DeviceApi& api_;
  const Stream stream_;
  size_t count_ = 0;
  std::vector<Event> events_;  // behind
  std::vector<double> times_;  // not behind
  double origin_ = 0;          // behind: time of mark 0
};

}  // namespace gt
