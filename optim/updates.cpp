#include "optim/updates.h"

#include "kernels/core/rng.h"

namespace gt {

Updates::Updates(const OptimizerOptions& o, const ParamStore& store, const Mesh& mesh, const Backend& backend,
                 Stream stream)
    : ops_(*backend.ops) {
  if (!o.rounding_seed) return;
  room_ = Buffer(kRoom * size_of(DType::kF32), stream.device, *backend.device);
  for (const Parameter* p : store.tensors())
    places_.push_back(place_of(*p, *o.rounding_seed, mesh.coord(Axis::kTp), mesh.size(Axis::kTp)));
}

Updates::Place Updates::place_of(const Parameter& p, uint64_t seed, int tp_rank, int tp_size) {
  Place place{stream_key(seed, "sr/" + (p.tied_to.empty() ? p.name : p.tied_to)), {}};
  const int64_t local = p.local_shape.numel(), cols = p.local_shape.rank > 1 ? p.local_shape[-1] : 1;
  if (p.shard.kind != ShardSpec::Kind::kSplit) {
    place.runs.push_back({0, local, 0, local, local});
  } else if (p.shard.dim == 0) {  // blocks of whole rows
    const int64_t full = p.pad_rows > 0 ? p.pad_rows : p.full_shape[0];
    for (int64_t row = 0; row < local / cols;) {
      const BlockCut b = block_cut(p.shard, full, row, tp_rank, tp_size);
      place.runs.push_back({b.local * cols, b.count * cols, b.at * cols, b.count * cols, b.count * cols});
      row = b.local + b.count;
    }
  } else {
    GT_CHECK(p.shard.blocks == 1, p.name, ": blocks of columns");
    const int64_t full = p.full_shape[-1];
    place.runs.push_back({0, local, logical_index(p.shard, full, 0, tp_rank, tp_size), cols, full});
  }
  return place;
}

void Updates::round(const Place& place, int64_t begin, Tensor wide, Tensor value, Tensor scalars, Stream stream) const {
  for (const Run& r : place.runs) {
    const int64_t from = std::max(begin, r.begin), to = std::min(begin + wide.numel(), r.begin + r.count);
    if (from >= to) continue;
    ops_.stochastic_round({.src = wide.slice(from - begin, to - from),
                           .dst = value.slice(from - begin, to - from),
                           .scalars = scalars,
                           .key = place.key,
                           .base = r.base,
                           .first = from - r.begin,
                           .cols = r.cols,
                           .stride = r.stride},
                          stream);
  }
}

}  // namespace gt
