// GEMM autotuning, shared by all ranks. With device.gemm_tune auto the first rank of each GPU type times every GEMM
// shape that any rank runs, before step 1. The other ranks take over its table (kernels/cuda/gemm/gemm_choices.h).
// Repeated timing could choose other algorithms, so a shared table keeps replicas and resumed runs bitwise identical.
#pragma once
#include <string>

#include "kernels/backend.h"
#include "launch/config/config.h"
#include "launch/engine/engine.h"
#include "parallel/mesh.h"

namespace gt {

// Collective over the world. Does nothing unless the config enables timing and there is a GPU. Afterwards nothing else
// is timed: other GEMM shapes use cuBLASLt's first heuristic result. run_folder: holds the run's copy of the tables
// (gemm-plans-N.txt, N counts GPU types), which takes precedence over the user's cache on resume; empty: no copy.
// Prints what was timed and which file was ignored.
void settle_gemm_plans(const Config&, const EngineOptions&, const Mesh&, const Backend&, int device, Stream,
                       const std::string& run_folder);

}  // namespace gt
