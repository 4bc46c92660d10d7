// Proves a layout before it runs: parallel/proof/layout_proof.h, for the engine of a run.
#pragma once
#include <optional>

#include "launch/engine/engine.h"
#include "parallel/proof/layout_proof.h"

namespace gt {

// Calls that a proof observed: of ops, and of groups of ranks.
struct ProofSize {
  int64_t ops = 0, messages = 0;
};

// Runs two steps and an evaluation of one rank of each pipeline stage with observed types, of at most a few
// microbatches. Throws kInternal with the first call that does not fit. `sites`: receives those of its collectives,
// unless nullptr. `fault`: injected.
ProofSize prove_layout(const EngineOptions&, const MeshShape&, std::vector<proof::Site>* sites = nullptr,
                       const std::optional<proof::Fault>& fault = {});

}  // namespace gt
