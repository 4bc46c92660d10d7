// One error from one rank: when several ranks fail in the same phase, the lowest speaks and the others leave quietly.
#pragma once
#include <functional>
#include <string>

#include "parallel/comm/process_group.h"

namespace gt {

// An error that every rank knows of: all of them leave in order, with one exit code, and nobody has to be torn down.
// `speaker`: this rank has the message; the others print nothing.
class AgreedError : public Error {
 public:
  AgreedError(const std::string& what, Exit code, bool speaker) : Error(what, code), speaker_(speaker) {}
  bool speaker() const { return speaker_; }

 private:
  bool speaker_;
};

// Collective. Runs `body` on every rank; if it throws anywhere, every rank throws AgreedError with the code of the
// lowest failing rank, whose message it is. `body` must not leave a collective half done when it fails.
void agree(ProcessGroup& world, const std::function<void()>& body);

// Collective. 16 random bytes of rank 0 as hex: names a run in its checkpoints.
std::string shared_uuid(ProcessGroup& world);

}  // namespace gt
