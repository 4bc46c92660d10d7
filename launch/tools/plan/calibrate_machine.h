// gpttrain plan --calibrate: measures the ops and the communication of layouts on this machine.
#pragma once
#include <span>

#include "launch/observe/measured_times.h"
#include "launch/observe/step_prediction.h"
#include "launch/ranks/command.h"

namespace gt {

// Conditions of a config's run on this machine, all of whose ranks are here.
CoreShare machine_share(const Config&);
MeasuredOn machine_conditions(const Config&);
const char* machine_transport(const Config&);  // of its process groups

// Times of this machine's earlier calibrations under these conditions; empty without any.
MeasuredTimes machine_times(const Config&);

// Measures ops of the layouts, in their order, until a minute has passed, and keeps the times. Prints progress on
// standard error. Requires: the layouts have one number of ranks, at least one, and one precision.
void calibrate_ops(std::span<const Config> layouts);

// Measures collectives in groups of every size that divides the ranks, and messages. Starts the ranks of the config,
// as training does. Returns the exit code of the job.
Exit calibrate_comm(const Command&);

}  // namespace gt
