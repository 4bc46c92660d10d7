// Times collectives of a group and messages between its neighbours, for bench comm and plan --calibrate. All groups of
// one kind run concurrently, as in a step.
#pragma once
#include <string>

#include "kernels/core/memory.h"
#include "launch/engine/rank_device.h"
#include "launch/tools/bench/bench_stats.h"
#include "parallel/mesh.h"

namespace gt {

enum class Motion { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kNeighbours };
constexpr const char* kMotionNames[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send+recv"};

struct MeasuredMotion {
  std::string group;
  int ranks;
  Motion motion;
  int64_t bytes;
  // Per call, on the slowest rank. Of messages the mean over the ranks: ranks leave a barrier up to a latency apart, by
  // which some wait longer for their message and others less.
  Spread seconds;
  double wire() const;
};

class CommBench {
 public:
  // `most`: bytes of the largest tensor. `enough`: seconds of a measurement.
  CommBench(const Mesh&, const RankDevice&, Stream, int64_t most, double enough = 0.2);
  // Collective over the world, including ranks whose group of this kind has one member.
  MeasuredMotion measure(const Mesh::Named&, Motion, int64_t bytes);

 private:
  void move(ProcessGroup&, Motion, int64_t bytes);
  ProcessGroup& world_;
  const DeviceApi& api_;
  const Stream stream_;
  Buffer memory_, received_;
  const double enough_;
};

}  // namespace gt
