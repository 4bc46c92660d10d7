// The start block and the plan table: what will run, where, and how much memory it takes, said before the first step.
#pragma once
#include <string>
#include <vector>

#include "data/dataset.h"
#include "launch/config/config.h"
#include "launch/logs/metrics.h"
#include "launch/train/engine.h"

namespace gt {

// What each pipeline rank needs: the plan of its rank with dp and tp place 0. A plan is a dry run of a step: make it
// once.
using StagePlans = std::vector<EnginePlan>;
StagePlans plan_stages(const EngineOptions&, const MeshShape&, const Backend&);

struct BannerFacts {
  const Config& config;
  const EngineOptions& options;
  const StagePlans& plans;
  const Backend& backend;
  const Dataset& train;
  const Dataset* valid = nullptr;
  std::string comm;  // "mpi", "thread", "self"
  int threads = 1;   // of a rank
  int64_t resumed_from = -1;
  std::string checkpoint;  // where from
};

Rows start_rows(const BannerFacts&);

// One line a pipeline rank: the layers of its chunks, activations in flight, planned bytes by category.
std::string stage_table(const EngineOptions&, const MeshShape&, const StagePlans&);

// Throws kUsage when the ranks that share this device together need more than is free, naming the largest rank and
// category.
void require_memory(const EngineOptions&, const MeshShape&, const StagePlans&, const Backend&, int device, int sharers);

// Has the host memory of this machine room for a copy of what its ranks put into a checkpoint, beside what they need?
bool snapshot_fits(const EngineOptions&, const MeshShape&, const StagePlans&, const Backend&, int ranks_here);

// What the ZeRO stage costs: bytes held, bytes sent a step; where a pipeline makes it a choice, of both ways to reduce
// gradients (the other way is planned here).
std::string zero_text(const EngineOptions&, const MeshShape&, const StagePlans&, const Backend&);

std::string graphs_line(const ReplayCounts&);  // "96 replayed, 4 first uses, 0 queued call by call"
std::string memory_line(const MemoryReport&);  // "weights 32.1 MB, gradients …, together …"

}  // namespace gt
