// What the tests of layouts demand of two runs of run_mesh (launch/verify/mesh_run.h).
#pragma once
#include "launch/verify/mesh_run.h"

namespace gt {

// Losses, norms, first gradients, final parameters, LAMB's ratios and the evaluation, bit by bit.
void check_bitwise(const MeshResult& a, const MeshResult& b);

// A layout against one rank that trains on the same batches: the first step within 1e-6 (every gradient within 1e-5 of
// its tensor, relative L2), losses and the evaluation within 1e-5 to the end.
void check_close(const MeshResult& layout, const MeshResult& one);

// Every rank used the memory that was planned for it, and sent over data parallelism in each of `steps` steps what was
// planned.
void check_planned(const MeshResult&, int steps);

}  // namespace gt
