// Derives a rank's engine options from the user's config.
#pragma once
#include <string>

#include "launch/config/config.h"
#include "launch/engine/engine.h"

namespace gt {

MeshShape mesh_shape(const Config&);
EngineOptions engine_options(const Config&, int threads);

// Returns the rows of logits that take 1 GiB on one TP rank, a power of two. With head chunks this large a GPU's GEMMs
// are not memory-bound, although each chunk adds to the whole gradient of the head. This is the GPU default of
// model.loss_chunk 0.
int64_t large_loss_chunk(const TransformerConfig&, const Precision&, int tp);

// Returns device.threads, or cores / ranks on this machine, at least 1.
int threads_per_rank(const Config&, int local_ranks);
// Returns whether every thread of all ranks of this machine has its own core. Only then do idle threads spin.
bool ranks_may_spin(const Config&, int local_ranks, int threads);

// Returns the backend of device.kind; auto selects CUDA if there is a device. Sets the CPU's instruction set. Throws
// kUsage with the reason if cuda is configured but unavailable.
const Backend& choose_backend(const Config&);

}  // namespace gt
