// Proves a layout before it runs: parallel/proof/layout_proof.h, for the engine of a run.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "launch/engine/engine.h"
#include "launch/engine/group_calls.h"
#include "parallel/proof/layout_proof.h"

namespace gt {

// Calls that a proof observed: of ops, and of groups of ranks.
struct ProofSize {
  int64_t ops = 0, messages = 0;
};

// Runs two steps and an evaluation of one rank with observed types, of at most a few microbatches. Throws kInternal
// with the first call that does not fit. `sites`: receives those of its collectives, unless nullptr. `fault`: injected.
ProofSize prove_rank(const EngineOptions&, const MeshShape&, int rank, std::vector<proof::Site>* sites = nullptr,
                     const std::optional<proof::Fault>& fault = {});

// Of one rank of each pipeline stage: the others of a stage run the same program.
ProofSize prove_layout(const EngineOptions&, const MeshShape&, std::vector<proof::Site>* sites = nullptr,
                       const std::optional<proof::Fault>& fault = {});

// Where a layout that is wrong computes: the functions of the call that does not fit and of those that wrote what it
// reads, innermost first. Proves it again.
std::string code_of(const proof::LayoutError&, const EngineOptions&, const MeshShape&,
                    const std::optional<proof::Fault>& fault = {});

// What of a run has no types and is proved as another one: FP8 as 16 bits, Muon as AdamW.
struct Untyped {
  bool fp8 = false, muon = false;
};
Untyped untyped(const EngineOptions&);

// Calls of a rank in each of the first steps, in order. lengths: tokens of a sequence, by step and microbatch.
std::vector<std::vector<GroupCall>> derive_calls(const EngineOptions&, const MeshShape&, int rank,
                                                 const std::vector<std::vector<int64_t>>& lengths);

}  // namespace gt
