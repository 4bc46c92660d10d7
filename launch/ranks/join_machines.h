// Lets the stall monitors of a job's machines find each other, whoever started its ranks.
#pragma once
#include "parallel/comm/mpi_group.h"
#include "parallel/comm/stall_monitor.h"

namespace gt {

// Collective over the ranks of the factory. On several machines: rank 0 opens the hub (parallel/comm/node_link.h) and
// passes its addresses and a secret of this job to all through MPI; the others get a link. On one machine: nothing.
void join_machines(MpiFactory&, StallOptions&);

}  // namespace gt
