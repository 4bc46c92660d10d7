// One error from one rank: when several ranks fail in the same phase, the lowest speaks and the others leave quietly.
#pragma once
#include <functional>

#include "parallel/comm/process_group.h"

namespace gt {

// Thrown on ranks whose peer has the message: carries the exit code, prints nothing.
class PeerFailed : public Error {
 public:
  explicit PeerFailed(Exit code) : Error("another rank failed", code) {}
};

// Collective. Runs `body` on every rank; if it throws anywhere, the lowest such rank rethrows its error and all others throw
// PeerFailed with the same exit code. `body` must not leave a collective half done when it fails.
void agree(ProcessGroup& world, const std::function<void()>& body);

}  // namespace gt
