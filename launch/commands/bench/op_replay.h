// A recorded call (launch/engine/step_ops.h) made again on memory of its own: to time it alone.
#pragma once
#include <vector>

#include "kernels/core/memory.h"
#include "launch/commands/bench/device_bench.h"
#include "launch/engine/step_ops.h"

namespace gt {

class OpReplay {
 public:
  // Gives every tensor of the call room and values like those of training: normal numbers; ids below `vocab`, low ones
  // more often, as words are; statistics and second moments above 0; a step that is not skipped. Throws kUsage when the
  // device has no room.
  OpReplay(const OpCall&, const DeviceBench&, int64_t vocab);
  OpReplay(const OpReplay&) = delete;
  OpReplay& operator=(const OpReplay&) = delete;
  // Queues it, by the backend's own kernel.
  void operator()() const;

 private:
  SegmentTable table_for(const SegmentTable& like, std::vector<Segment>);
  const DeviceBench& bench_;
  std::vector<Buffer> held_;
  SegmentTables tables_;
  OpArgs args_;
};

}  // namespace gt
