// What a run would do, found out by one process that starts nothing, writes nothing and holds no weights: each pipeline
// stage is played once on the null backend (plan_memory), whatever the number of ranks.
#pragma once
#include <string>
#include <vector>

#include "launch/config/config.h"
#include "launch/hosts/rank_env.h"
#include "launch/observe/memory_fit.h"
#include "launch/observe/metrics.h"

namespace gt {

// Where the ranks of a run would be: on the hosts of its launch section, as many on a machine as a launcher reports, or
// all here. Where Slurm alone decides (no hosts named), one rank for each device of a machine.
std::vector<Machine> place_ranks(const Config&, const RankEnv&, int devices);

// The start block of the run, plus `change`: the smallest change of the config that fits the devices, where it does
// not. Throws what the run would be refused with before its first step: data that are missing, a checkpoint of another
// run. Does not throw where the run does not fit: "fit" reports that. `force`: as of the verb.
Rows dry_run(const LoadedConfig&, const RankEnv&, bool range_test = false, bool force = false);

}  // namespace gt
