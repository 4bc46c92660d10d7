#include "parallel/comm/messages/socket_group.h"

#include "parallel/comm/messages/socket_transport.h"

namespace gt {

SocketFactory::SocketFactory(const SocketJob& job, std::chrono::milliseconds deadline, bool node_memory)
    : MessageFactory(std::make_unique<SocketTransport>(job, node_memory), deadline, node_memory) {}

}  // namespace gt
