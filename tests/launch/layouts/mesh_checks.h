// Equality checks for two runs of run_mesh (launch/tools/verify/mesh_run.h).
#pragma once
#include "launch/tools/verify/mesh_run.h"

namespace gt {

// Requires bitwise equal losses, norms, first gradients, final parameters, LAMB ratios and evaluation.
void check_bitwise(const MeshResult& a, const MeshResult& b);

// Compares a layout with one rank trained on the same batches. First step within 1e-6 (every gradient within 1e-5 of
// its tensor, relative L2); losses and the evaluation within 1e-5 to the end.
void check_close(const MeshResult& layout, const MeshResult& one);

// Requires that every rank used exactly the planned memory, and sent the planned data-parallel traffic in each of
// `steps` steps.
void check_planned(const MeshResult&, int steps);

}  // namespace gt
