#include "launch/observe/rank_memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <numeric>

#include "parallel/comm/host_values.h"

namespace gt {

MemoryBytes bytes_of(const MemoryReport& m) {
  return {m.weights, m.gradients, m.optimizer, m.activations, m.buffers, m.copies, m.workspaces, m.graphs};
}

int64_t total(const MemoryBytes& m) { return std::accumulate(m.begin(), m.end(), int64_t{0}); }

int64_t resident_bytes() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  return int64_t{u.ru_maxrss} * 1024;
}

std::vector<RankMemory> gather_memory(const Engine& engine, const MemoryReport& planned, int64_t process_bytes) {
  const Mesh& mesh = engine.mesh();
  const RankMemory mine{.rank = mesh.rank(),
                        .stage = mesh.coord(Axis::kPp),
                        .planned = bytes_of(planned),
                        .measured = bytes_of(engine.measured_plan().memory),
                        .process_bytes = process_bytes};
  return gather_values(mesh.world(), mine);
}

std::vector<RankMemory> worth_logging(std::vector<RankMemory> all) {
  if (all.size() <= MemoryRecord::kMostRanks) return all;
  std::stable_sort(all.begin(), all.end(), [](const RankMemory& a, const RankMemory& b) {
    return std::pair(a.stage, -total(a.measured)) < std::pair(b.stage, -total(b.measured));
  });
  all.erase(std::unique(all.begin(), all.end(), [](auto& a, auto& b) { return a.stage == b.stage; }), all.end());
  all.resize(std::min(all.size(), MemoryRecord::kMostRanks));
  return all;
}

}  // namespace gt
