// One choice of algorithms for all ranks: with device.gemm_tune auto the first rank of each type of GPU times every
// kind of product that any rank will run, before step 1, and the others take its table (kernels/cuda/gemm_choices.h).
// Timing may choose differently twice: so replicas, and a run that is resumed, have the same bits.
#pragma once
#include <string>

#include "kernels/backend.h"
#include "launch/config/config.h"
#include "launch/engine/engine.h"
#include "parallel/mesh.h"

namespace gt {

// Collective over the world; nothing to do unless the config asks for timing and there is a GPU. From then on nothing
// else is timed: a product of another kind takes cuBLASLt's first suggestion. run_folder: where the run keeps its own
// copy (gemm-plans-N.txt, N counts types of GPUs), which goes before the user's cache when it is resumed; empty: none
// is kept. Tells the user what was timed and which file was left aside.
void settle_gemm_plans(const Config&, const EngineOptions&, const Mesh&, const Backend&, int device, Stream,
                       const std::string& run_folder);

}  // namespace gt
