// Ranks connected by sockets, without MPI: those of one machine, and of launchers that only set variables (torchrun).
// Unix sockets and shared memory inside a machine, TCP between machines.
#pragma once
#include <chrono>

#include "parallel/comm/messages/message_group.h"
#include "parallel/comm/messages/socket_rendezvous.h"

namespace gt {

// Connects to all ranks in the constructor. The destructor waits until every rank has reached it, except during stack
// unwinding. A connection that ends earlier is an error (kIo) naming the rank.
class SocketFactory final : public MessageFactory {
 public:
  SocketFactory(const SocketJob&, std::chrono::milliseconds deadline, bool node_memory = true);
};

}  // namespace gt
