// Ranks connected by MPI.
#pragma once
#include <chrono>

#include "parallel/comm/messages/message_group.h"

namespace gt {

// Initializes MPI (unless already done) and finalizes it in the destructor, except during stack unwinding: the launcher
// then ends the other ranks. Requires a launcher: a program that runs alone uses SelfFactory. MPI_THREAD_FUNNELED. If
// more ranks than processors share the machine, MPI is set to yield when idle.
class MpiFactory final : public MessageFactory {
 public:
  explicit MpiFactory(std::chrono::milliseconds deadline, bool node_memory = true);
};

}  // namespace gt
