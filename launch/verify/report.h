// What `gpttrain verify` says about a verdict. Text only.
#pragma once
#include <string>
#include <vector>

#include "launch/verify/verifier.h"
#include "parallel/mesh.h"

namespace gt {

// "pp0 dp0-1 tp1" of ranks that fill a block of the mesh, else "ranks 0,3".
std::string places_text(const MeshShape&, const std::vector<int>& ranks);

// One line a class of tensors ("layers.*.attn.qkv.weight"): how many, and the largest relative error of its gradients,
// parameters and optimizer state over all steps; before them losses, norms and activations.
std::string class_table(const std::vector<Difference>&);

// The n with the largest error: what, name, step, places, relative error, ulp.
std::string worst_lines(const std::vector<Difference>&, size_t n, const MeshShape&);

// "output of layers.1.attn.out in step 1, samples 4…: relative error 0.31 where 1e-05 is allowed; on pp0 dp0 tp0-1".
std::string describe(const Difference&, const MeshShape&);

// All of it, and the sentence that counts: "equal: …" or "DIFFERENT. First in execution order: …".
std::string report(const Config& layout, const Verdict&);

}  // namespace gt
