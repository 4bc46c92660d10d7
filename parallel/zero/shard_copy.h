// The elements of a view on the host, whatever type they are stored in.
#pragma once
#include "kernels/backend.h"
#include "parallel/zero/shard_view.h"

namespace gt {

// out, from: f32, as many as the view has. Halves are widened; on the way back they are rounded to nearest even. Both
// block until it is done.
void fetch_view(const ShardView&, float* out, const Backend&, Stream);
void store_view(const ShardView&, const float* from, const Backend&, Stream);

}  // namespace gt
