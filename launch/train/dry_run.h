// Dry run: the start block of a run, from one process that starts, writes and allocates nothing. Each pipeline stage is
// run once on the null backend (plan_memory), whatever the number of ranks.
#pragma once
#include <string>
#include <vector>

#include "launch/config/config.h"
#include "launch/hosts/rank_env.h"
#include "launch/observe/memory_fit.h"
#include "launch/observe/metrics.h"

namespace gt {

// Returns the placement of the run's ranks: on the hosts of the launch section, as many per machine as a launcher
// reports, or all here. If Slurm assigns the hosts (none named), one rank per device of a machine.
std::vector<Machine> place_ranks(const Config&, const RankEnv&, int devices);

// Returns the start block of the run, plus `change`: the smallest change of the config that fits the devices, if it
// does not. Throws every error that would end the run before its first step, such as missing data or a checkpoint of
// another run. Does not throw if the run does not fit; "fit" reports that. `force`: as of the subcommand.
Rows dry_run(const LoadedConfig&, const RankEnv&, bool range_test = false, bool force = false);

}  // namespace gt
