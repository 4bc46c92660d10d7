// Collective error handling: if several ranks fail in one phase, the lowest one reports and all exit in order.
#pragma once
#include <functional>
#include <string>

#include "parallel/comm/process_group.h"

namespace gt {

// Error agreed on by all ranks. They exit in order with one exit code; no rank has to be aborted. `prints`: this rank
// prints the message, the others print nothing.
class AgreedError : public Error {
 public:
  AgreedError(const std::string& what, Exit code, bool prints) : Error(what, code), prints_(prints) {}
  bool prints() const { return prints_; }

 private:
  bool prints_;
};

// Runs `body` on every rank. If it throws anywhere, every rank throws AgreedError with the code of the lowest failing
// rank, which carries the message. Requires: `body` does not fail in the middle of a collective. Collective.
void agree(ProcessGroup& world, const std::function<void()>& body);

// Returns 16 random bytes of rank 0 as hex, used as a run's id in its checkpoints. Collective.
std::string shared_uuid(ProcessGroup& world);

}  // namespace gt
