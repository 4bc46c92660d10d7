// Slurm batch script for a job's command line: one task per rank, with whole TP groups on a node. Sends a stop signal
// before the time limit and requeues if the run was interrupted after a save.
#pragma once
#include <string>

#include "launch/ranks/ranks.h"

namespace gt {

// Throws kUsage if the ranks do not divide evenly over `nodes`, or a node would split a TP group.
std::string sbatch_script(const JobRequest&, int64_t nodes);

}  // namespace gt
