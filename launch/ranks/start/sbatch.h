// A batch script for Slurm that runs a job as its command line says: as many tasks as ranks, whole tensor-parallel
// groups on a node, a stop signal in time before the limit, and a requeue when the run was interrupted after a save.
#pragma once
#include <string>

#include "launch/ranks/ranks.h"

namespace gt {

// kUsage where the ranks do not spread over so many nodes evenly, or a node would hold parts of a tensor-parallel group.
std::string sbatch_script(const JobRequest&, int64_t nodes);

}  // namespace gt
