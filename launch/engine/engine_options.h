// From the config that a user wrote to what one rank's engine needs.
#pragma once
#include <string>

#include "launch/config/config.h"
#include "launch/engine/engine.h"

namespace gt {

MeshShape mesh_shape(const Config&);
EngineOptions engine_options(const Config&, int threads);

// Rows of logits of one tensor-parallel rank that take a GiB, a power of two: pieces of the head so large that a GPU's
// products are not bound by memory, though each adds to all of the head's gradient. What model.loss_chunk 0 means
// there.
int64_t large_loss_chunk(const TransformerConfig&, const Precision&, int tp);

// device.threads, or cores / ranks on this machine, at least 1.
int threads_per_rank(const Config&, int local_ranks);
// Whether all threads of all ranks of this machine have a core each: only then do idle ones spin.
bool ranks_may_spin(const Config&, int local_ranks, int threads);

// The backend that device.kind names; auto takes CUDA when there is a device. Sets the CPU's instruction set. Throws
// kUsage when cuda was asked for and cannot be had, with the reason.
const Backend& choose_backend(const Config&);

}  // namespace gt
