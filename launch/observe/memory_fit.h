// Whether a layout fits the memory of the devices that its ranks share: the device with the least room left, the rank
// that needs most there, and what is needed and available.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "launch/engine/engine.h"

namespace gt {

// Memory plan of each pipeline rank: that of its rank with dp and tp coordinate 0, which the others equal.
using StagePlans = std::vector<EnginePlan>;
StagePlans plan_stages(const EngineOptions&, const MeshShape&, const Backend&);

// A machine and the ranks on it, ascending. Ranks share its devices in turn.
struct Machine {
  std::string name;
  std::vector<int> ranks;
};

struct MemoryFit {
  std::string machine;
  int device = 0;
  std::vector<int> ranks;  // that share the device, ascending
  int limiting_rank = 0;   // of those: needs most
  int64_t needed = 0;      // bytes, of all of them
  int64_t usable = 0;      // bytes of the device that a run takes at most
  int64_t free_bytes = 0;  // of the device
  bool fits() const { return needed <= usable; }
  double share() const { return static_cast<double>(needed) / static_cast<double>(std::max<int64_t>(usable, 1)); }
};

// The fullest device of all machines, each taken to have the devices and the free memory of this one.
MemoryFit fullest_device(const MeshShape&, const StagePlans&, const Backend&, const std::vector<Machine>&);

// "fits: rank 0 (pp0 dp0 tp0) needs most, 7.9 GB, most of it activations (5.7 GB); 2 ranks … of … usable"
std::string fit_text(const MemoryFit&, const MeshShape&, const StagePlans&);

// Throws kUsage when the ranks of the fullest device need more than is usable there.
void require_memory(const MemoryFit&, const MeshShape&, const StagePlans&);

// Has the host memory of this machine room for a copy of what its ranks put into a checkpoint, beside what they need?
bool snapshot_fits(const MeshShape&, const StagePlans&, const Backend&, int ranks_here);

std::string memory_line(const MemoryReport&);  // "weights 32.1 MB, gradients …, together …"

}  // namespace gt
