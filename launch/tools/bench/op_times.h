// Times op calls as in a step: on as many cores as ranks compute at once, over memory that does not stay in caches.
#pragma once
#include <memory>
#include <vector>

#include "launch/engine/measure/step_ops.h"
#include "launch/observe/measured_times.h"
#include "launch/tools/bench/device_bench.h"

namespace gt {

class OpTimer {
 public:
  // `together` threads replay each call concurrently, with `threads` of the backend each.
  OpTimer(const Backend&, int device, int threads, int together);
  // Means over the threads. Of each thread's measurements the first decile counts: other programs on the machine only
  // lengthen them. On a CPU with one thread: CPU seconds.
  OpSeconds seconds(const OpCall&, int64_t vocab) const;

 private:
  std::vector<std::unique_ptr<DeviceBench>> benches_;  // [together]
  bool alone_;                                         // one thread executes a call
};

}  // namespace gt
