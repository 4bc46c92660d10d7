#include "optim/updates.h"

#include "kernels/core/rng.h"

namespace gt {

Updates::Updates(const OptimizerOptions& o, const ParamStore& store, const Mesh& mesh, const Backend& backend,
                 Stream stream)
    : ops_(*backend.ops) {
  if (!o.rounding_seed) return;
  room_ = Buffer(kRoom * size_of(DType::kF32), stream.device, *backend.device);
  for (const Parameter* p : store.tensors()) {
    const int64_t local = p->local_shape.numel();
    Place place{stream_key(*o.rounding_seed, "sr/" + (p->tied_to.empty() ? p->name : p->tied_to)), 0, local, local};
    if (p->shard.kind == ShardSpec::Kind::kSplit) {
      // A run of elements that are neighbours here and in the logical tensor: a block of rows, or a row's part.
      GT_CHECK(p->shard.dim == 0 || p->shard.blocks == 1, p->name, ": blocks of columns");
      const int64_t cols = p->local_shape.rank > 1 ? p->local_shape[-1] : 1;
      place.cols = p->shard.dim == 0 ? local / p->shard.blocks : cols;
      place.stride = place.cols * mesh.size(Axis::kTp);
      place.base = place.cols * mesh.coord(Axis::kTp);
    }
    places_.push_back(place);
  }
}

}  // namespace gt
