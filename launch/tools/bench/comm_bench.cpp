#include "launch/tools/bench/comm_bench.h"

#include <vector>

#include "kernels/core/host.h"

namespace gt {
namespace {

constexpr size_t kLeastRuns = 5, kMostRuns = 200;

double wire_share(Motion m, int ranks) {
  const double n = ranks;
  return m == Motion::kNeighbours ? 1 : (m == Motion::kAllReduce ? 2 : 1) * (n - 1) / n;
}

}  // namespace

double MeasuredMotion::wire() const { return wire_share(motion, ranks) * static_cast<double>(bytes) / seconds.median; }

CommBench::CommBench(const Mesh& mesh, const RankDevice& device, Stream s, int64_t most, double enough)
    : world_(mesh.world()),
      api_(*device.backend().device),
      stream_(s),
      memory_(most, s.device, api_),
      received_(most, s.device, api_),
      enough_(enough) {
  api_.zero(memory_.data(), memory_.bytes(), s);
  api_.zero(received_.data(), received_.bytes(), s);
}

MeasuredMotion CommBench::measure(const Mesh::Named& named, Motion motion, int64_t bytes) {
  std::vector<double> seconds;
  double spent = 0;
  for (int k = -2;; ++k) {
    world_.barrier();
    const double begin = now();
    move(*named.group, motion, bytes);
    api_.synchronize(stream_);
    const double own = now() - begin;
    const double taken =
        motion == Motion::kNeighbours ? mean_of(world_, own, named.group->size() > 1) : slowest(world_, own);
    if (k < 0) continue;  // warm-up: connections, staging buffers
    seconds.push_back(taken);
    spent += taken;
    if (seconds.size() >= kMostRuns || (seconds.size() >= kLeastRuns && spent >= enough_)) break;
  }
  return {named.name, named.size, motion, bytes, spread_of(std::move(seconds))};
}

void CommBench::move(ProcessGroup& g, Motion motion, int64_t bytes) {
  const int n = g.size();
  if (n == 1) return;
  const int64_t count = bytes / 4 / n * n;
  const Tensor full = memory_.tensor({count}, DType::kF32);
  switch (motion) {
    case Motion::kAllReduce: return g.all_reduce(full, ReduceOp::kSum, stream_).wait(stream_);
    case Motion::kAllGather:
      return g.all_gather(full.slice(g.rank() * (count / n), count / n), full, stream_).wait(stream_);
    case Motion::kReduceScatter:
      return g.reduce_scatter(full, full.slice(g.rank() * (count / n), count / n), stream_).wait(stream_);
    case Motion::kAllToAll:
      return g.all_to_all(full, received_.tensor({count}, DType::kF32), {}, stream_).wait(stream_);
    case Motion::kNeighbours: {
      Work in = g.recv(received_.tensor({count}, DType::kF32), (g.rank() + n - 1) % n, 0, stream_);
      Work out = g.send(full, (g.rank() + 1) % n, 0, stream_);
      in.wait(stream_);
      return out.wait(stream_);
    }
  }
}

}  // namespace gt
