// What the hosts of a job have to know of each other, whoever started its ranks.
#pragma once
#include <string>

#include "launch/hosts/connection_guard.h"
#include "parallel/comm/mpi_group.h"
#include "parallel/comm/stall_monitor.h"

namespace gt {

// Collective over the ranks of the factory. On several hosts: their addresses are exchanged and `guard` admits them
// alone; rank 0 opens the hub of the stall monitors (parallel/comm/node_link.h) on `interface` (comm.interface) and
// broadcasts its addresses and a secret of this job over MPI; the others get a link. On one host: nothing.
void join_machines(MpiFactory&, const std::string& interface, ConnectionGuard* guard, StallOptions&);

}  // namespace gt
