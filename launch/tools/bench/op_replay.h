// Replays a recorded op call (launch/engine/measure/step_ops.h) on its own memory, to time it alone.
#pragma once
#include <vector>

#include "kernels/core/memory.h"
#include "launch/engine/measure/step_ops.h"
#include "launch/tools/bench/device_bench.h"

namespace gt {

class OperandWriter;

class OpReplay {
 public:
  // Allocates every tensor of the call with values like those in training: normally distributed; ids below `vocab`,
  // skewed to low ones as words are; positive statistics and second moments; a step that is not skipped. Throws kUsage
  // if the device lacks memory. `like`: of the same call; its bytes are copied, which is faster.
  OpReplay(const OpCall&, const DeviceBench&, int64_t vocab, const OpReplay* like = nullptr);
  OpReplay(const OpReplay&) = delete;
  OpReplay& operator=(const OpReplay&) = delete;
  // Enqueues the op with the backend's own kernel.
  void operator()() const;
  void change_weight();  // packed copies of it are no longer valid, as after an update

 private:
  SegmentTable table_for(const SegmentTable& like, std::vector<Segment>, const OperandWriter&);
  const DeviceBench& bench_;
  std::vector<Buffer> held_;
  SegmentTables tables_;
  OpArgs args_;
};

}  // namespace gt
