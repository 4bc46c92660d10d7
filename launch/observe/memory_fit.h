// Checks whether a layout fits the memory of the devices that its ranks share: the device with the least free memory,
// the rank that needs most on it, and needed versus available bytes.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "launch/engine/engine.h"

namespace gt {

// Memory plan of each pipeline rank: taken from the rank with dp and tp coordinate 0; the other
// ranks of the stage need the same.
using StagePlans = std::vector<EnginePlan>;
StagePlans plan_stages(const EngineOptions&, const MeshShape&, const Backend&);

// Machine and its ranks in ascending order. Ranks are assigned to its devices round-robin.
struct Machine {
  std::string name;
  std::vector<int> ranks;
};

struct MemoryFit {
  std::string machine;
  int device = 0;
  std::vector<int> ranks;  // ranks that share the device, ascending
  int limiting_rank = 0;   // the one of `ranks` that needs most
  int64_t needed = 0;      // bytes that all of `ranks` need
  int64_t usable = 0;      // bytes of the device that a run may use
  int64_t free_bytes = 0;  // of the device
  bool fits() const { return needed <= usable; }
  double share() const { return static_cast<double>(needed) / static_cast<double>(std::max<int64_t>(usable, 1)); }
};

// Returns the fullest device of all machines, assuming that each has the devices and free memory of this one.
MemoryFit fullest_device(const MeshShape&, const StagePlans&, const Backend&, const std::vector<Machine>&);

// What a rank of experts on several takes depends on the router: where all choose alike, where three times as many
// tokens are for its experts, as fine-tuned models have them on one of 16 ranks (DeepSpeed #8213), and at most.
std::string expert_memory(const EngineOptions&, const MeshShape&, const Backend&);

// Returns "fits: rank 0 (pp0 dp0 tp0) needs most, 7.9 GB, most of it activations (5.7 GB); 2 ranks … of … usable".
std::string fit_text(const MemoryFit&, const MeshShape&, const StagePlans&);

// Throws kUsage if the ranks of the fullest device need more than is usable there.
void require_memory(const MemoryFit&, const MeshShape&, const StagePlans&);

// Returns whether the host memory of this machine fits a copy of its ranks' checkpoint data in addition to their own
// needs.
bool snapshot_fits(const MeshShape&, const StagePlans&, const Backend&, int ranks_here);

std::string memory_line(const MemoryReport&);  // "weights 32.1 MB, gradients …, total …"

}  // namespace gt
