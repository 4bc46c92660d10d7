// Information that the hosts of a job exchange at startup, independent of the launcher.
#pragma once
#include <string>

#include "launch/hosts/connection_guard.h"
#include "parallel/comm/messages/message_group.h"
#include "parallel/comm/watch/stall_monitor.h"

namespace gt {

// On several hosts: exchanges their addresses, which `guard` then admits exclusively. Rank 0 opens the hub of the stall
// monitors (parallel/comm/watch/node_link.h) on `interface` (comm.interface) and broadcasts its addresses and a per-job
// secret; the other ranks receive a link. On one host: no effect. Collective over the ranks of the factory.
void join_machines(MessageFactory&, const std::string& interface, ConnectionGuard* guard, StallOptions&);

}  // namespace gt
