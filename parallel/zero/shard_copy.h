// Copies of a view's elements on the host in f32, whatever their storage dtype.
#pragma once
#include "kernels/backend.h"
#include "parallel/zero/shard_view.h"

namespace gt {

// out, from: f32, v.data.numel() elements. int8 codes are numbers without their scale. 16-bit values are widened on
// fetch and rounded to nearest even on store. Both block until the copy is complete.
void fetch_view(const ShardView&, float* out, const Backend&, Stream);
void store_view(const ShardView&, const float* from, const Backend&, Stream);

}  // namespace gt
