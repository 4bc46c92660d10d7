// Text of a `gpttrain verify` result.
#pragma once
#include <string>
#include <vector>

#include "launch/tools/verify/verifier.h"
#include "parallel/mesh.h"

namespace gt {

// Returns "pp0 dp0-1 tp1" for ranks that form a block of the mesh, else "ranks 0,3".
std::string rank_coordinates_text(const MeshShape&, const std::vector<int>& ranks);

// Returns a table of losses, norms and activations, then one line per class of tensors ("layers.*.attn.qkv.weight"):
// count, and maximum relative error of gradients, parameters and optimizer state over all steps.
std::string class_table(const std::vector<Difference>&);

// Returns the n largest errors: kind, name, step, ranks, relative error, ulp.
std::string worst_lines(const std::vector<Difference>&, size_t n, const MeshShape&);

// Returns "output of layers.1.attn.out in step 1, samples 4…: relative error 0.31 where 1e-05 is allowed; on pp0 dp0
// tp0-1".
std::string describe(const Difference&, const MeshShape&);

// Returns the full report, ending in "equal: …" or "DIFFERENT. First in execution order: …".
std::string report(const Config& layout, const VerifyResult&);

}  // namespace gt
