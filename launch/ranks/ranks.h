// Brings the ranks of a job into being and runs one function on each: alone, as threads of this process, as a rank that
// a launcher started, or by starting this program again under mpirun.
#pragma once
#include <functional>

#include "launch/config/cli.h"
#include "parallel/comm/process_group.h"

namespace gt {

// Runs `body` on every rank that lives in this process and returns the exit code of the job. An error of a rank is
// printed once, with rank, host and place; the other ranks are brought down with it.
Exit run_ranks(const Command&, const std::function<Exit(GroupFactory&)>& body);

// comm.stall_abort_s, which is smaller by default where a supervisor starts a hung job again.
double stall_abort_seconds(const Command&);

// What run_ranks would start the ranks with, as one would type it; "" where this process runs them itself.
std::string start_command(const Command&);

}  // namespace gt
