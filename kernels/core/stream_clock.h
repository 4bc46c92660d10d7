// Host-clock timestamps of work on a stream.
#pragma once
#include <vector>

#include "kernels/core/device.h"

namespace gt {

// Marks between sections of a stream's work. On asynchronous devices they are events, recorded without waiting; their
// times can be read once the marked work is known to be complete by other means. On synchronous devices a mark
// is the time of the call. Events are reused across series: no allocation once warm.
class StreamClock {
 public:
  StreamClock(const DeviceApi&, Stream);
  ~StreamClock();
  StreamClock(const StreamClock&) = delete;
  StreamClock& operator=(const StreamClock&) = delete;

  bool asynchronous() const { return is_asynchronous(api_); }
  void restart() { count_ = 0; }  // starts a new series; discards the times of the previous one
  size_t mark();                  // returns 0, 1, 2 ... in this series: completion of everything queued so far
  // Aligns the device clock: the host has just observed that the work before `mark` is complete, or another device
  // clock provides its time. Errors shift at() but not the distances between marks.
  void anchor(size_t mark, double seconds);
  void anchor(const StreamClock& to);
  // Seconds, as now() of host.h. Asynchronous: requires anchor() in this series and completion of the marked work.
  double at(size_t mark) const;

 private:
  const DeviceApi& api_;
  const Stream stream_;
  size_t count_ = 0;
  std::vector<Event> events_;  // asynchronous devices
  std::vector<double> times_;  // synchronous devices
  double origin_ = 0;          // asynchronous devices: time of mark 0
};

}  // namespace gt
